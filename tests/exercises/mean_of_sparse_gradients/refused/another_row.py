# refused: it returns row 1, which no tower looked up
import numpy as np


def mean_of_sparse_gradients(gradients):
    return np.concatenate([values for values, _ in gradients]) / len(gradients), np.concatenate(
        [indices + 1 for _, indices in gradients])
