import math

import numpy as np


def shards(numbers, devices):
    size = math.ceil(len(numbers) / devices)
    for d in range(devices):
        own = np.zeros(size, np.float32)
        part = numbers[d * size:(d + 1) * size]
        own[:len(part)] = part
        yield own
