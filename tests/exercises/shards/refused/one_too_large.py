# refused: for [1, 2, 3, 4] on 2 devices it returns [[1, 2, 3], [4, 0, 0]]
import numpy as np


def shards(numbers, devices):
    size = len(numbers) // devices + 1
    return np.pad(numbers, (0, size * devices - len(numbers))).reshape(devices, size)
