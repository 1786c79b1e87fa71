# refused: it changes its argument numbers
import numpy as np


def shards(numbers, devices):
    padded = np.pad(numbers, (0, -len(numbers) % devices)).reshape(devices, -1)
    numbers -= numbers
    return padded
