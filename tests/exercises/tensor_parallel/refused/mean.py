# refused: it returns
import numpy as np


def tensor_parallel(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    totals = all_reduce([np.maximum(x @ w1 + b1, 0) @ w2 for w1, b1, w2 in zip(w1_parts, b1_parts, w2_parts)])
    return [total / len(w1_parts) + b2 for total in totals]
