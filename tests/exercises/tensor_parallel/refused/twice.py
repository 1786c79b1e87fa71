# refused: it calls all_reduce 2 times; once is right
import numpy as np


def tensor_parallel(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    parts = [np.maximum(x @ w1 + b1, 0) @ w2 for w1, b1, w2 in zip(w1_parts, b1_parts, w2_parts)]
    all_reduce(parts)
    return [total + b2 for total in all_reduce(parts)]
