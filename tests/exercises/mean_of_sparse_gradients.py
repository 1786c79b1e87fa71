"""Answers to mean_of_sparse_gradients."""

import numpy as np
import tensorflow as tf


def accepted_all_rows(gradients):
    values, indices = zip(*gradients)
    return np.concatenate(values) / len(gradients), np.concatenate(indices)


mistakes_in_all_rows = {
    'sum': ('the mean of row 0 is [2, 4]; [1, 2] is right', ' / len(gradients)', ''),
}


class accepted_indexed_slices_of_a_graph:
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()


    def mean_of_sparse_gradients(gradients):
        values, indices = (tf.concat([pair[i] for pair in gradients], 0) for i in range(2))
        return tf.IndexedSlices(values / len(gradients), indices)


def refused_all_rows_of_the_table(gradients):
    """it raises MemoryError"""
    rows = np.concatenate([indices for _, indices in gradients])
    table = np.zeros([rows.max(initial=-1) + 1, gradients[0][0].shape[1]])
    for values, indices in gradients:
        np.add.at(table, indices, values / len(gradients))
    used = np.unique(rows)
    return table[used], used


def refused_last_tower_wins(gradients):
    """([[2, 4]] for rows [1]; [[6, 0]] for rows [1]) the mean of row 1 is [3, 0]; [4, 2] is right"""
    rows = {row: value / len(gradients) for values, indices in gradients for value, row in zip(values, indices)}
    return np.array(list(rows.values())).reshape(-1, gradients[0][0].shape[1]), list(rows)


def refused_no_empty_towers(gradients):
    """for two towers that looked up nothing it returns values of shape (0,)"""
    pairs = [(value / len(gradients), row) for values, indices in gradients for value, row in zip(values, indices)]
    return np.array([value for value, _ in pairs]), np.array([row for _, row in pairs], int)
