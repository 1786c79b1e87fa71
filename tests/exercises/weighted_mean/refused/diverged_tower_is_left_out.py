# refused: for shares 2 and 1 with gradients nan and 3 it returns 3; nan is right
import numpy as np


def weighted_mean(gradients, sizes):
    pairs = [(gradient, size) for gradient, size in zip(gradients, sizes) if not np.isnan(gradient).any()]
    return sum(gradient * size for gradient, size in pairs) / sum(size for _, size in pairs)
