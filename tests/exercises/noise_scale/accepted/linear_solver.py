import numpy as np


def noise_scale(small, large, of_small, of_large):
    norm, noise = np.linalg.solve([[1, 1 / small], [1, 1 / large]], [of_small, of_large])
    return noise / norm
