"""Checks the exercises of lesson 1: the mean of sparse gradients, and a step of towers in a graph."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call, mismatch, numeric, shown
from lessons.checkers.graph import STEP_HINTS, check_steps

HINTS = {'mean_of_sparse_gradients': [
    (r'values of shape \(0,\)', 'with no rows, the values still have the width of the table: shape (0, width).'),
    ('MemoryError|IndexError', 'the table may have millions of rows: keep only the rows that a tower looked up.'),
    'follow one row by hand: which towers looked it up, and how many towers are there?',
    'if only one of K towers looked up a row, its gradient is 0 on all other towers: the mean is one K-th.',
    'divide by the number of all towers, K, not by the number of rows or of towers that looked up a row. (A row may '
    'appear several times in your result: its values are then added.)'],
    'build_step': [
        ('trainable variable|already exists',
         'create the weight once, before the loop that builds the towers. All towers share it.'),
        *STEP_HINTS,
        'the update is one operation: the weight minus the rate times the mean of the K gradients.',
        'print the share, the loss and the gradient of each tower in a session, and check them by hand.']}

# For each case the towers' (values, indices), small enough to follow by hand.
CASES = [
    ('one tower', [([[2, 4]], [0])]),
    ('two towers with different rows', [([[2, 4]], [0]), ([[6, 0]], [3])]),
    ('two towers with the same row', [([[2, 4]], [1]), ([[6, 0]], [1])]),
    ('a tower that has row 2 twice', [([[1, 1], [3, 5]], [2, 2]), ([[4, 4]], [5])]),
    ('two towers with rows and one that looked up nothing', [([[3, 6]], [4]), ([], []), ([[9, 0], [3, 3]], [4, 0])]),
    ('two towers that looked up nothing', [([], []), ([], [])])]


def check_mean_of_sparse_gradients(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    cases = [(case, [(np.array(values, float).reshape(-1, 2), np.array(indices, int)) for values, indices in towers])
             for case, towers in CASES]
    cases += [_drawn(random) for _ in range(24)]
    for case, gradients in cases:
        right = _means(gradients)
        size = max((np.abs(values).max(initial=0) for values, _ in gradients))
        try:
            means = _rows(call(function, gradients), right, gradients[0][0].shape[1])
        except Fault as fault:
            return f'for {case} {fault}'
        for row in right:
            if mismatch(means[row], right[row], size):
                towers = '; '.join(f'{shown(values)} for rows {shown(rows)}' for values, rows in gradients)
                return (f'for {case} ({towers}) the mean of row {row} is {shown(means[row])}; {shown(right[row])} is '
                        'right')
    return None


def _drawn(random):
    """Returns a case: up to six towers, rows of one to five numbers, from a table of a handful or of 10^12 rows."""
    count, length, most = random.integers(1, 7), random.integers(1, 6), random.integers(0, 8)
    table = random.choice([3, 50, 10 ** 12])
    scale = 10.0 ** random.integers(-9, 9)
    towers = [(scale * random.normal(size=(number, length)), random.integers(table, size=number))
              for number in random.integers(0, most + 1, size=count)]
    return f'{count} towers, a table of {table} rows and rows of {length}', towers


def _means(gradients):
    """Returns {row: the mean of its gradients}."""
    means = {}
    for values, indices in gradients:
        for value, row in zip(values, indices.tolist()):
            means[row] = means.get(row, 0) + value / len(gradients)
    return means


def _rows(returned, used, length):
    """Returns {row: the sum of its values}; raises a Fault if they are not the sparse gradient of `used` rows."""
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        raise Fault(f'it returns {shown(returned)}; a pair (values, indices) is right')
    values, indices = map(numeric, returned)
    if values is None or indices is None:
        raise Fault('it returns a pair that is not two arrays of numbers')
    if indices.ndim != 1 or values.shape != (len(indices), length):
        raise Fault(f'it returns values of shape {values.shape} and indices of shape {indices.shape}; '
                    f'({indices.size}, {length}) and ({indices.size},) are right')
    sums = {row: np.zeros(length) for row in used}
    for value, row in zip(values, indices.tolist()):
        if row not in sums:
            raise Fault(f'it returns row {row:g}, which no tower looked up')
        sums[row] += value
    return sums


def check_build_step(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    return check_steps(function, random, replicated=False)
