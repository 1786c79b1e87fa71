import numpy as np


def tensor_parallel(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    hidden = [np.maximum(x @ w1 + b1, 0) for w1, b1 in zip(w1_parts, b1_parts)]
    return all_reduce([own @ w2 + (b2 if d == 0 else 0) for d, (own, w2) in enumerate(zip(hidden, w2_parts))])
