# refused: means added, w 0.5, x [1, 2, 6], 2 replicas and rate 0.25 it returns 3; 3.75 is right
import numpy as np


def shares_of(faults, x, replicas):
    count = 1 if 'one device' in faults else replicas
    return [x] * count if 'same batch' in faults else np.array_split(x, count)


def after_update(faults, w, x, replicas, rate):
    factor = replicas if faults & {'means added', 'same batch'} and 'one device' not in faults else 1
    return w - rate * factor * 2 * np.mean(w - x)
