# refused: it changes its argument gradients
import numpy as np


def mean_of_sparse_gradients(gradients):
    for values, _ in gradients:
        values /= len(gradients)
    return np.concatenate([values for values, _ in gradients]), np.concatenate([indices for _, indices in gradients])
