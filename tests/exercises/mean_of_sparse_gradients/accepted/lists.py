import numpy as np


def mean_of_sparse_gradients(gradients):
    values = [value / len(gradients) for values, _ in gradients for value in values.tolist()] if False else [
        [number / len(gradients) for number in value] for values, _ in gradients for value in values.tolist()]
    length = gradients[0][0].shape[1]
    return np.reshape(values, [-1, length]), [row for _, indices in gradients for row in indices.tolist()]
