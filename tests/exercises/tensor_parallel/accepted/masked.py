import numpy as np


def tensor_parallel(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    hidden = [np.dot(x, w1) + b1 for w1, b1 in zip(w1_parts, b1_parts)]
    return list(map(b2.__add__, all_reduce([np.dot(own * (own > 0), w2) for own, w2 in zip(hidden, w2_parts)])))
