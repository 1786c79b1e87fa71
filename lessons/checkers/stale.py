"""Checks the exercise of lesson 5, the learning rate that accounts for staleness."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import compare

# (rate, started, applied), with staleness 7, 2, 1, 0, 12, and 0 at the first update.
CASES = [(0.7, 1342, 1349), (0.1, 8, 10), (0.1, 4, 5), (0.1, 3, 3), (0.025, 0, 12), (0.5, 0, 0)]


def check(function: Callable) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    for rate, started, applied in CASES:
        case = f'rate {rate:g}, started at {started} and applied at {applied},'
        wrong = compare(function, (rate, started, applied), rate / np.maximum(1, applied - started), case)
        if wrong:
            return wrong
    return None
