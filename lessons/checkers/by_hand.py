"""Checks the exercise of lesson 7, the clipped mean gradient."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call, mismatch, shortened, shown

# (tower_gradients, limit): above the limit, below it, exactly on it, all zero; more towers; matrices.
CASES = [([[[2.0], [8.0]], [[4.0], [0.0]]], 1.0),
         ([[[0.3], [0.0]], [[0.3], [0.8]]], 1.0),
         ([[[3.0], [4.0]]], 5.0),
         ([[[0.0, 0.0]], [[0.0, 0.0]]], 1.0),
         ([[[10.0], [0.0]], [[-10.0], [0.0]], [[0.0], [6.0]]], 1.0),
         ([[[[1.0, 2.0], [2.0, 4.0]], [5.0]], [[[1.0, 0.0], [2.0, 0.0]], [1.0]]], 2.0)]


def check(function: Callable) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    for towers, limit in CASES:
        case = f'for {", ".join(_listed(k, tower) for k, tower in enumerate(towers))} and the limit {limit:g}'
        right = _right(towers, limit)
        try:
            with np.errstate(all='ignore'):
                returned = call(function, [[np.array(gradient) for gradient in tower] for tower in towers], limit)
        except Fault as fault:
            return f'{case} {fault}'
        if not isinstance(returned, (list, tuple)) or len(returned) != len(right):
            return f'{case} it returns {shortened(repr(returned))}; a list of {len(right)} arrays is right'
        for i, (array, expected) in enumerate(zip(returned, right)):
            difference = mismatch(array, expected)
            if difference:
                return f'{case}, {difference} for variable {i}'
    return None


def _listed(k, tower):
    """Returns a tower's gradients as 'tower 0 with [2] and [8]'."""
    return f'tower {k} with ' + ' and '.join(shown(gradient) for gradient in tower)


def _right(towers, limit):
    means = [np.mean([tower[i] for tower in towers], 0) for i in range(len(towers[0]))]
    norm = np.linalg.norm(np.concatenate([mean.ravel() for mean in means]))
    return [mean * min(1.0, limit / norm) if norm else mean for mean in means]
