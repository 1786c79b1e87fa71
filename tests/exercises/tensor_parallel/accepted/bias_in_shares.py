import numpy as np


def tensor_parallel(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    return all_reduce([np.maximum(x @ w1 + b1, 0) @ w2 + b2 / len(w1_parts)
                       for w1, b1, w2 in zip(w1_parts, b1_parts, w2_parts)])
