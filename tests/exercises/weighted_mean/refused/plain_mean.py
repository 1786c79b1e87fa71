# refused: for shares 3 and 1 with gradients 2 and 6 it returns 4; 3 is right
import numpy as np


def weighted_mean(gradients, sizes):
    return np.mean(gradients, 0)
