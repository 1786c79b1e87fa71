import numpy as np


def staleness_aware_rate(rate, started, applied):
    return np.float32(rate) / np.maximum(1, applied - started)
