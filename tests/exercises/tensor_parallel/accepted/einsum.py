import numpy as np


def layer(x, weights, biases):
    return np.einsum('bi,io->bo', x, weights) + biases


def tensor_parallel(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    hidden = (np.clip(layer(x, w1, b1), 0, None) for w1, b1 in zip(w1_parts, b1_parts))
    return np.array(all_reduce([layer(own, w2, 0) for own, w2 in zip(hidden, w2_parts)])) + b2
