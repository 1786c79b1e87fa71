# refused: it raises ValueError
import numpy as np


def tensor_parallel(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    hidden = all_reduce([np.maximum(x @ w1 + b1, 0) for w1, b1 in zip(w1_parts, b1_parts)])
    return [own @ np.concatenate(w2_parts) + b2 for own in hidden]
