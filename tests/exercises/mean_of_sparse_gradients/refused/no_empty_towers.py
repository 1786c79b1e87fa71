# refused: for two towers that looked up nothing it returns values of shape (0,)
import numpy as np


def mean_of_sparse_gradients(gradients):
    pairs = [(value / len(gradients), row) for values, indices in gradients for value, row in zip(values, indices)]
    return np.array([value for value, _ in pairs]), np.array([row for _, row in pairs], int)
