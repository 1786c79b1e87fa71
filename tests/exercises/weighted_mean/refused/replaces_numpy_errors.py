# refused: gradients 4 and nan and 10 it raises ZeroDivisionError in line 7: division by zero
import numpy as np


def weighted_mean(gradients, sizes):
    np.seterr(all='raise')
    return sum(gradient * (1 / (1 / size)) for gradient, size in zip(gradients, sizes)) / sum(sizes)
