import numpy as np


def after_update(faults, w, x, replicas, rate):
    count = 1 if 'one device' in faults else replicas
    shares = [x for _ in range(count)] if 'same batch' in faults else np.array_split(x, count)
    gradients = [2 * (w - share) / (share.size if 'means added' in faults else x.size) for share in shares]
    return np.asarray(w - rate * np.concatenate(gradients).sum())
