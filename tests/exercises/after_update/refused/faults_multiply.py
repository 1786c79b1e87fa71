# refused: means added and same batch, w 0, x [1, 2, 3, 4], 2 replicas and rate 0.1 it returns 2; 1 is right
import numpy as np


def shares_of(faults, x, replicas):
    count = 1 if 'one device' in faults else replicas
    return [x] * count if 'same batch' in faults else np.array_split(x, count)


def after_update(faults, w, x, replicas, rate):
    gradient = 2 * np.mean(w - x)
    if 'one device' not in faults:
        gradient *= replicas ** len(faults & {'means added', 'same batch'})
    return w - rate * gradient
