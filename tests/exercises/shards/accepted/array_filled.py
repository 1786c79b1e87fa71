import numpy as np


def shards(numbers, devices):
    size = int(np.ceil(len(numbers) / devices))
    filled = np.zeros([devices, size])
    for i, number in enumerate(numbers):
        filled[i // size, i % size] = number
    return filled
