# refused: it raises IndexError in line 8
import numpy as np


def mean_of_sparse_gradients(gradients):
    table = np.zeros([6, gradients[0][0].shape[1]])
    for values, indices in gradients:
        np.add.at(table, indices, values / len(gradients))
    used = np.unique(np.concatenate([indices for _, indices in gradients]))
    return table[used], used
