"""Checks the exercises of lesson 12: the clipped mean gradient."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call, mismatch, shown

HINTS = {'clip_mean_gradients': [
    'first the mean over the towers, for each variable; then the norm, of all means together.',
    'how long is a gradient of zeros? And which gradients stay as they are?']}

# (tower_gradients, limit): above the limit, below it, exactly on it, all zero; more towers; matrices.
CASES = [([[[2.0], [8.0]], [[4.0], [0.0]]], 1.0),
         ([[[0.3], [0.0]], [[0.3], [0.8]]], 1.0),
         ([[[3.0], [4.0]]], 5.0),
         ([[[0.0, 0.0]], [[0.0, 0.0]]], 1.0),
         ([[[10.0], [0.0]], [[-10.0], [0.0]], [[0.0], [6.0]]], 1.0),
         ([[[[1.0, 2.0], [2.0, 4.0]], [5.0]], [[[1.0, 0.0], [2.0, 0.0]], [1.0]]], 2.0)]


def check_clip_mean_gradients(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    for towers, limit in CASES + [_drawn(random) for _ in range(24)]:
        towers = [[np.array(gradient) for gradient in tower] for tower in towers]
        case = f'for {", ".join(_listed(k, tower) for k, tower in enumerate(towers))} and the limit {limit:.4g}'
        right, scale = _right(towers, limit)
        try:
            returned = call(function, towers, limit)
        except Fault as fault:
            return f'{case} {fault}'
        if not isinstance(returned, (list, tuple, np.ndarray)) or len(returned) != len(right):
            return f'{case} it returns {shown(returned)}; a list of {len(right)} arrays is right'
        size = scale * max(np.abs(gradient).max() for tower in towers for gradient in tower)
        for i, (array, expected) in enumerate(zip(returned, right)):
            difference = mismatch(array, expected, size)
            if difference:
                return f'{case}, {difference} for variable {i}'
    return None


def _drawn(random):
    """Returns a case: up to five towers of up to four variables, small or very large, and a limit above or below."""
    shapes = [tuple(random.integers(1, 4, size=random.integers(0, 3))) for _ in range(random.integers(1, 5))]
    scale = 10.0 ** random.choice([-6, 0, 3, 20, 30])
    towers = [[np.asarray(scale * random.normal(size=shape)) for shape in shapes] for _ in range(random.integers(1, 6))]
    return towers, float(scale ** random.integers(0, 2) * random.uniform(0.1, 3))


def _listed(k, tower):
    """Returns a tower's gradients as 'tower 0 with [2] and [8]'."""
    return f'tower {k} with ' + ' and '.join(shown(gradient) for gradient in tower)


def _right(towers, limit):
    """Returns the clipped means, and what the means were multiplied by."""
    means = [np.mean([tower[i] for tower in towers], 0) for i in range(len(towers[0]))]
    norm = np.linalg.norm(np.concatenate([mean.ravel() for mean in means]))
    scale = min(1.0, limit / norm) if norm else 1.0
    return [mean * scale for mean in means], scale
