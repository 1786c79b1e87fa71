# refused: it returns
import numpy as np


def shards(numbers, devices):
    return np.array_split(numbers, devices)
