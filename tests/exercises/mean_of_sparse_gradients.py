"""Answers to mean_of_sparse_gradients."""
from dataclasses import dataclass

import numpy as np
import tensorflow as tf


def accepted_all_rows(gradients):
    values, indices = zip(*gradients)
    return np.concatenate(values) / len(gradients), np.concatenate(indices)


mistakes_in_all_rows = {
    'absolute_rounding': ('the mean of row', 'np.concatenate(values)', 'np.concatenate(values).round(7)'),
    'another_row': (
        'it returns row 1, which no tower looked up',
        'np.concatenate(indices)', 'np.concatenate(indices) + 1'),
    'changes_the_values': (
        'it changes its argument gradients',
        'return np.concatenate(values) / len(gradients)',
        'for each in values:\n'
        '    each /= len(gradients)\n'
        'return np.concatenate(values)'),
    'divided_by_the_towers_with_rows': (
        'three towers, one of which looked up nothing',
        '/ len(gradients)', '/ max(1, sum(len(each) > 0 for each in indices))'),
    'rows_of_two_numbers': (
        'it returns values of shape',
        'np.concatenate(values)', 'np.concatenate([each.reshape(-1) for each in values]).reshape(-1, 2)'),
    'sum': ('the mean of row 0 is [2, 4]; [1, 2] is right', ' / len(gradients)', ''),
}


@dataclass
class Sparse:
    values: 'np.ndarray'
    indices: 'np.ndarray'


def accepted_dataclass(gradients):
    return Sparse(np.concatenate([values for values, _ in gradients]) / len(gradients),
                  np.concatenate([indices for _, indices in gradients]))


def accepted_each_row_once(gradients):
    values = np.concatenate([values for values, _ in gradients])
    rows, places = np.unique(np.concatenate([indices for _, indices in gradients]), return_inverse=True)
    sums = np.zeros([len(rows), values.shape[1]])
    np.add.at(sums, places, values)
    return sums / len(gradients), rows


def accepted_indexed_slices(gradients):
    values, indices = (tf.concat([pair[i] for pair in gradients], 0) for i in range(2))
    return tf.IndexedSlices(values / len(gradients), indices)


class accepted_indexed_slices_of_a_graph:
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()


    def mean_of_sparse_gradients(gradients):
        values, indices = (tf.concat([pair[i] for pair in gradients], 0) for i in range(2))
        return tf.IndexedSlices(values / len(gradients), indices)


def accepted_lists(gradients):
    values = [value / len(gradients) for values, _ in gradients for value in values.tolist()] if False else [
        [number / len(gradients) for number in value] for values, _ in gradients for value in values.tolist()]
    length = gradients[0][0].shape[1]
    return np.reshape(values, [-1, length]), [row for _, indices in gradients for row in indices.tolist()]


def refused_all_rows_of_the_table(gradients):
    """it raises MemoryError"""
    rows = np.concatenate([indices for _, indices in gradients])
    table = np.zeros([rows.max(initial=-1) + 1, gradients[0][0].shape[1]])
    for values, indices in gradients:
        np.add.at(table, indices, values / len(gradients))
    used = np.unique(rows)
    return table[used], used


def refused_dense(gradients):
    """a pair (values, indices) is right"""
    table = np.zeros([6, 2])
    for values, indices in gradients:
        np.add.at(table, indices, values / len(gradients))
    return table


def refused_first_tower_only(gradients):
    """for two towers with different rows"""
    return gradients[0]


def refused_last_tower_wins(gradients):
    """([[2, 4]] for rows [1]; [[6, 0]] for rows [1]) the mean of row 1 is [3, 0]; [4, 2] is right"""
    rows = {row: value / len(gradients) for values, indices in gradients for value, row in zip(values, indices)}
    return np.array(list(rows.values())).reshape(-1, gradients[0][0].shape[1]), list(rows)


def refused_mean_of_those_that_have_the_row(gradients):
    """the mean of row 0 is [2, 4]; [1, 2] is right"""
    values = np.concatenate([values for values, _ in gradients])
    rows, places, counts = np.unique(np.concatenate([indices for _, indices in gradients]), return_inverse=True,
                                     return_counts=True)
    sums = np.zeros([len(rows), values.shape[1]])
    np.add.at(sums, places, values)
    return sums / counts[:, None], rows


def refused_no_empty_towers(gradients):
    """for two towers that looked up nothing it returns values of shape (0,)"""
    pairs = [(value / len(gradients), row) for values, indices in gradients for value, row in zip(values, indices)]
    return np.array([value for value, _ in pairs]), np.array([row for _, row in pairs], int)


def refused_table_of_six_rows(gradients):
    """it raises IndexError in line 8"""
    table = np.zeros([6, gradients[0][0].shape[1]])
    for values, indices in gradients:
        np.add.at(table, indices, values / len(gradients))
    used = np.unique(np.concatenate([indices for _, indices in gradients]))
    return table[used], used


def refused_text(gradients):
    """it returns a pair that is not two arrays of numbers"""
    return 'values', 'indices'
