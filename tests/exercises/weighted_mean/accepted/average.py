import numpy as np


def weighted_mean(gradients, sizes):
    counts = [size > 0 for size in sizes]
    return np.average(np.array(gradients)[counts], axis=0, weights=np.array(sizes)[counts])
