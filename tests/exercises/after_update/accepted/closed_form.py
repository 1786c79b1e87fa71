import numpy as np


def after_update(faults, w, x, replicas, rate):
    count = 1 if 'one device' in faults else replicas
    if 'same batch' in faults:
        step = count * np.mean(w - x)
    elif 'means added' in faults:
        step = sum(w - np.mean(share) for share in np.array_split(x, count))
    else:
        step = w - np.mean(x)
    return w - 2 * rate * step
