import numpy as np


def read_row(gpus, low, high, updates):
    step = gpus * np.array([low, high])
    images = 128 * gpus / step[::-1]
    up = images / (128 / np.array([0.35, 0.60]))
    return np.array([step, images, up, up / gpus, updates * step / 3600])
