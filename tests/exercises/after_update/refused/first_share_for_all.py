# refused: same batch, w 0, x [1, 2, 3, 4], 2 replicas and rate 0.1 it returns 0.3; 1 is right
import numpy as np


def shares_of(faults, x, replicas):
    count = 1 if 'one device' in faults else replicas
    return [x] * count if 'same batch' in faults else np.array_split(x, count)


def after_update(faults, w, x, replicas, rate):
    shares = shares_of(faults - {'same batch'}, x, replicas)
    if 'same batch' in faults:
        shares = [shares[0]] * len(shares)
    divisors = [len(share) if 'means added' in faults else len(x) for share in shares]
    return w - rate * sum(2 * np.sum(w - share) / divisor for share, divisor in zip(shares, divisors))
