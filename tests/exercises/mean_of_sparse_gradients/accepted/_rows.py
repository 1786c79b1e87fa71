import numpy as np


def joined(arrays):
    return np.concatenate(arrays)
