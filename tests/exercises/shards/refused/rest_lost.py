# refused: of shape (3, 1); shape (3, 2) is right
import numpy as np


def shards(numbers, devices):
    size = len(numbers) // devices
    return [np.array(numbers[d * size:(d + 1) * size]) for d in range(devices)]
