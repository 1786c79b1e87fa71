"""Checks the exercise of lesson 3, the mean of shares of different sizes."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import compare, shown

# For each case the gradients of every share's examples, which the checker itself takes the means of.
CASES = [[[1, 3], [4, 8]],
         [[1, 2, 3], [6]],
         [[2], [3, 4, 5], [6, 10]],
         [[7, 8]],
         [[3, 5], [], [10]],
         [[[1, 2], [3, 4]], [[11, 0]]]]


def check(function: Callable) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    for shares in CASES:
        examples = [gradient for share in shares for gradient in share]
        shape = np.shape(examples[0])
        gradients = [np.mean(share, axis=0) if share else np.full(shape, np.nan) for share in shares]
        sizes = [len(share) for share in shares]
        case = f'shares {_listed(sizes)} with gradients {_listed(map(shown, gradients))}'
        wrong = compare(function, (gradients, sizes), np.mean(examples, axis=0), case)
        if wrong:
            return wrong
    return None


def _listed(values):
    return ' and '.join(map(str, values))
