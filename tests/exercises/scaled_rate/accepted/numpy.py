import numpy as np


def scaled_rate(rate, batch, new_batch, curvature):
    return np.minimum(np.float64(rate) / batch * new_batch, np.reciprocal(float(curvature)))
