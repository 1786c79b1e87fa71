# refused: it returns [1, 2, 3, 4, 5, 0] of shape (6,); shape (3, 2) is right
import numpy as np


def shards(numbers, devices):
    return np.pad(numbers, (0, -len(numbers) % devices))
