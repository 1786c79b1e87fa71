# refused: no fault, w 0.5, x [1, 2, 6], 2 replicas and rate 0.25 it returns 2.125; 1.75 is right
import numpy as np


def shares_of(faults, x, replicas):
    count = 1 if 'one device' in faults else replicas
    return [x] * count if 'same batch' in faults else np.array_split(x, count)


def after_update(faults, w, x, replicas, rate):
    means = [2 * np.mean(w - share) for share in shares_of(faults, x, replicas)]
    return w - rate * (np.sum(means) if 'means added' in faults or 'same batch' in faults else np.mean(means))
