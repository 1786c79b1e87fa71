# refused: [[1, 4], [2, 5], [3, 0]]; [[1, 2], [3, 4], [5, 0]] is right
import numpy as np


def shards(numbers, devices):
    return np.pad(numbers, (0, -len(numbers) % devices)).reshape(-1, devices).T
