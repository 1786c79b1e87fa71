import numpy as np


def weighted_mean(gradients, sizes):
    return sum(size * np.asarray(gradient) for gradient, size in zip(gradients, sizes) if size) / sum(sizes)
