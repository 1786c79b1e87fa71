# refused: it does not end within 1 seconds
import itertools


def weighted_mean(gradients, sizes):
    return sum(itertools.repeat(0))
