import _rows


def mean_of_sparse_gradients(gradients):
    return _rows.joined([values / len(gradients) for values, _ in gradients]), _rows.joined(
        [indices for _, indices in gradients])
