# refused: three towers, one of which looked up nothing
import numpy as np


def mean_of_sparse_gradients(gradients):
    count = max(1, sum(len(indices) > 0 for _, indices in gradients))
    return np.concatenate([values for values, _ in gradients]) / count, np.concatenate(
        [indices for _, indices in gradients])
