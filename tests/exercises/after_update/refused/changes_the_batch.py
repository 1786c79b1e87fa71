# refused: it changes its argument x from [1, 2, 3, 4] to
import numpy as np


def shares_of(faults, x, replicas):
    count = 1 if 'one device' in faults else replicas
    return [x] * count if 'same batch' in faults else np.array_split(x, count)


def after_update(faults, w, x, replicas, rate):
    x *= -1
    x += w
    gradient = 0
    for share in shares_of(faults, x, replicas):
        gradient += 2 * np.sum(share) / (len(share) if 'means added' in faults else len(x))
    return w - rate * gradient
