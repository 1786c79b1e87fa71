# refused: shape (
import numpy as np


def shards(numbers, devices):
    size = max(1, round(len(numbers) / devices))
    return np.pad(numbers, (0, max(0, size * devices - len(numbers))))[:size * devices].reshape(devices, size)
