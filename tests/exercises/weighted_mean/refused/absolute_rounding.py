# refused: is right
import numpy as np


def weighted_mean(gradients, sizes):
    return np.round(sum(gradient * (size / sum(sizes)) for gradient, size in zip(gradients, sizes) if size), 6)
