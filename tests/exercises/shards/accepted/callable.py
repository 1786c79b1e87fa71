import numpy as np


class Cut:
    def __call__(self, numbers, devices):
        padded = np.resize(numbers, -(-len(numbers) // devices) * devices)
        padded[len(numbers):] = 0
        return np.split(padded, devices)


shards = Cut()
