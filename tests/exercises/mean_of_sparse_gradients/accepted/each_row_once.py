import numpy as np


def mean_of_sparse_gradients(gradients):
    values = np.concatenate([values for values, _ in gradients])
    rows, places = np.unique(np.concatenate([indices for _, indices in gradients]), return_inverse=True)
    sums = np.zeros([len(rows), values.shape[1]])
    np.add.at(sums, places, values)
    return sums / len(gradients), rows
