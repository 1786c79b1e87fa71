# refused: for shares 2 and 1 with gradients nan and 3 it returns 1; nan is right
import numpy as np


def weighted_mean(gradients, sizes):
    return np.nansum([gradient * size for gradient, size in zip(gradients, sizes)], axis=0) / sum(sizes)
