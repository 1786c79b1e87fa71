import numpy as np


def mean_of_sparse_gradients(gradients):
    values, indices = zip(*gradients)
    return np.concatenate(values) / len(gradients), np.concatenate(indices)
