"""Checks the exercise of lesson 1, the mean of sparse gradients."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call, mismatch, numeric, shown

ROWS = 6

# For each case the towers' (values, indices), small enough to be followed by hand.
CASES = [
    ('one tower', [([[2, 4]], [0])]),
    ('two towers with different rows', [([[2, 4]], [0]), ([[6, 0]], [3])]),
    ('two towers with the same row', [([[2, 4]], [1]), ([[6, 0]], [1])]),
    ('a tower that has row 2 twice', [([[1, 1], [3, 5]], [2, 2]), ([[4, 4]], [5])]),
    ('three towers, one of which looked up nothing', [([[3, 6]], [4]), ([], []), ([[9, 0], [3, 3]], [4, 0])]),
    ('two towers that looked up nothing', [([], []), ([], [])])]


def _case(gradients):
    """Returns the argument of the exercise: pairs of arrays, float [n, 2] and int [n]."""
    return [(np.array(values, float).reshape(-1, 2), np.array(indices, int)) for values, indices in gradients]


def _dense(values, indices):
    """Returns the gradient of all rows."""
    table = np.zeros([ROWS, 2])
    np.add.at(table, indices, values)
    return table


def check(function: Callable) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    for case, gradients in CASES:
        try:
            returned = call(function, _case(gradients))
            values, indices = _pair(returned, {row for _, rows in gradients for row in rows})
        except Fault as fault:
            return f'for {case} {fault}'
        means = np.mean([_dense(*pair) for pair in _case(gradients)], axis=0)
        for row, (mean, right) in enumerate(zip(_dense(values, indices), means)):
            if mismatch(mean, right):
                towers = '; '.join(f'{shown(each)} for rows {shown(rows)}' for each, rows in gradients)
                return f'for {case} ({towers}) the mean of row {row} is {shown(mean)}; {shown(right)} is right'
    return None


def _pair(returned, used):
    """Returns (values, indices) as arrays; raises a Fault if they are not the sparse gradient of `used` rows."""
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        raise Fault(f'it returns {type(returned).__name__}; a pair (values, indices) is right')
    values, indices = numeric(returned[0]), numeric(returned[1])
    if values is None or indices is None:
        raise Fault('it returns a pair that is not two arrays of numbers')
    if indices.ndim != 1 or values.shape != (len(indices), 2):
        raise Fault(f'it returns values of shape {values.shape} and indices of shape {indices.shape}; '
                    f'({indices.size}, 2) and ({indices.size},) are right')
    for index in indices:
        if index not in used:
            raise Fault(f'it returns row {index:g}, which no tower looked up')
    return values, indices.astype(int)
