# refused: ([[2, 4]] for rows [1]; [[6, 0]] for rows [1]) the mean of row 1 is [3, 0]; [4, 2] is right
import numpy as np


def mean_of_sparse_gradients(gradients):
    rows = {row: value / len(gradients) for values, indices in gradients for value, row in zip(values, indices)}
    return np.array(list(rows.values())).reshape(-1, gradients[0][0].shape[1]), list(rows)
