# refused: for shares 2 and 0 and 1 with gradients 4 and nan and 10 it returns nan; 6 is right
import numpy as np


def weighted_mean(gradients, sizes):
    return np.average(gradients, 0, sizes)
