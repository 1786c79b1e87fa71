# refused: no fault, w 0, x [1, 2, 3, 4], 2 replicas and rate 0.1 it returns 0.25; 0.5 is right
import numpy as np


def shares_of(faults, x, replicas):
    count = 1 if 'one device' in faults else replicas
    return [x] * count if 'same batch' in faults else np.array_split(x, count)


def after_update(faults, w, x, replicas, rate):
    gradient = 0
    for share in shares_of(faults, x, replicas):
        gradient += np.sum(w - share) / (len(share) if 'means added' in faults else len(x))
    return w - rate * gradient
