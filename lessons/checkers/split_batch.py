"""Checks the exercises of lesson 3: the mean of shares of different sizes."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import compare, shown

HINTS = {'weighted_mean': [
    'a share of 3 examples has three times as much to say as a share of 1.',
    'the mean of a share times its number of examples is its sum. Which sum do you need, and what divides it?',
    'an empty share has a mean over no examples, NaN, and 0 * NaN is NaN: leave it out. A share with examples whose '
    'gradient is NaN counts: that tower has diverged, and whoever called has to see it.']}

# For each case the gradients of every share's examples, which the checker itself takes the means of.
CASES = [[[1, 3], [4, 8]],
         [[1, 2, 3], [6]],
         [[2], [3, 4, 5], [6, 10]],
         [[7, 8]],
         [[3, 5], [], [10]],
         [[], [4]],
         [[1, np.nan], [3]],
         [[[1, 2], [3, 4]], [[11, 0]]]]


def check_weighted_mean(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    for shares in [[np.array(share, float) for share in case] for case in CASES] + [_drawn(random) for _ in range(24)]:
        examples = np.concatenate([share for share in shares if len(share)])
        gradients = [np.mean(share, axis=0) if len(share) else np.full(examples.shape[1:], np.nan) for share in shares]
        sizes = [len(share) for share in shares]
        case = f'shares {_listed(sizes)} with gradients {_listed(map(shown, gradients))}'
        wrong = compare(function, (gradients, sizes), np.mean(examples, axis=0), case, np.nanmax(np.abs(examples)))
        if wrong:
            return wrong
    return None


def _drawn(random):
    """Returns the examples of up to eight shares, some of which are empty, of very small to very large numbers."""
    shape = tuple(random.integers(1, 4, size=random.integers(0, 3)))
    sizes = random.integers(0, 30, size=random.integers(1, 9))
    sizes *= random.integers(0, 2, size=len(sizes))
    sizes[random.integers(len(sizes))] = random.integers(1, 30)
    return [10.0 ** random.integers(-12, 12) * (random.normal(size=(size, *shape)) + 1) for size in sizes]


def _listed(values):
    return ' and '.join(map(str, values))
