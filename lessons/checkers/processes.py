"""Checks the exercise of lesson 5: the split of points over processes."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call, counted, numeric, shown, whole

HINTS = {'split_points': [
    ('has the weight', 'the weight of a share is its number of points divided by N: (end - first) / N.'),
    'write down the shares of 5 points over 2 processes, and of 2 points over 3.',
    'share p ends where share p + 1 begins, so P + 1 borders make P shares. The first border is 0. Which is the last?',
    'divide whole numbers with //: a quotient such as 15 / 11 is rounded, and 11 * (15 / 11) may be less than 15.']}

# (points, processes): with and without a remainder, one process, one point each, more processes than points.
CASES = [(50, 5), (5, 2), (50, 3), (50, 4), (50, 1), (7, 6), (4, 4), (2, 3), (1, 5), (15, 11), (1, 49)]


def check_split_points(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    drawn = [(int(random.integers(1, 600)), int(random.integers(1, 200))) for _ in range(30)]
    for points, processes in CASES + drawn:
        try:
            _check_shares(points, processes, call(function, points, processes))
        except Fault as fault:
            return f'for {counted(points, "point")} and {counted(processes, "process", "processes")} {fault}'
    return None


def _check_shares(points, processes, shares):
    """Raises a Fault if a point is in no share or in two, if sizes differ by more than one, or if a weight is wrong."""
    if not isinstance(shares, (list, tuple, np.ndarray)):
        raise Fault(f'it returns {shown(shares)}; a list of shares is right')
    if len(shares) != processes:
        raise Fault(f'it returns {counted(len(shares), "share")} instead of {processes}')
    owners = [[] for _ in range(points)]
    sizes = []
    for p, share in enumerate(shares):
        triple = numeric(share)
        if triple is None or triple.shape != (3,):
            raise Fault(f'share {p} is {shown(share)}; a tuple (first, end, weight) is right')
        first, end = map(whole, share[:2])
        if first is None or end is None:
            raise Fault(f'share {p} is from {share[0]!r} to {share[1]!r}; whole numbers, which can slice an array, are '
                        'right')
        if not 0 <= first <= end <= points:
            raise Fault(f'share {p} is from {first} to {end}; 0 <= first <= end <= {points} is right')
        sizes.append(end - first)
        for i in range(first, end):
            owners[i].append(p)
    for i, own in enumerate(owners):
        if not own:
            raise Fault(f'point {i} is in no share')
        if len(own) > 1:
            raise Fault(f'point {i} is in the shares {own[0]} and {own[1]}')
    smallest, largest = np.argmin(sizes), np.argmax(sizes)
    if sizes[largest] > sizes[smallest] + 1:
        raise Fault(f'share {largest} has {counted(sizes[largest], "point")} and share {smallest} has '
                    f'{sizes[smallest]}; at most one more is right')
    for p, (size, (_, _, weight)) in enumerate(zip(sizes, shares)):
        if not abs(weight - size / points) <= 1e-5 * size / points:  # a weight of NaN is wrong, too
            raise Fault(f'share {p}, of {counted(size, "point")}, has the weight {shown(weight)}; {size}/{points} = '
                        f'{size / points:.4g} is right')
