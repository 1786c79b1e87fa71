"""Checks the exercises of lesson 5: the learning rate that accounts for staleness."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import compare

HINTS = {'staleness_aware_rate': [
    'how many updates were made between the reading and the update? Begin with the example of the docstring.',
    'a gradient that is not stale, and one whose staleness is 1, both get the whole rate.']}

# (rate, started, applied), with staleness 7, 2, 1, 0, 12, and 0 at the first update.
CASES = [(0.7, 1342, 1349), (0.1, 8, 10), (0.1, 4, 5), (0.1, 3, 3), (0.025, 0, 12), (0.5, 0, 0)]


def check_staleness_aware_rate(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    cases = list(CASES)
    for _ in range(24):
        started, staleness = (int(10 ** random.uniform(0, 6)) - 1 for _ in range(2))
        cases.append((float(10 ** random.uniform(-12, 2)), started, started + staleness))
    for rate, started, applied in cases:
        case = f'rate {rate:.4g}, started at {started} and applied at {applied},'
        wrong = compare(function, (rate, started, applied), rate / np.maximum(1, applied - started), case)
        if wrong:
            return wrong
    return None
