# refused: for [7] on 4 devices it returns [[7]] of shape (1, 1); shape (4, 1) is right
import numpy as np


def shards(numbers, devices):
    devices = min(devices, len(numbers))
    return np.pad(numbers, (0, -len(numbers) % devices)).reshape(devices, -1)
