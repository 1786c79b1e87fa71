"""Checks the exercise of lesson 4, the split of points over processes."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call, numeric

# (points, processes): with and without a remainder, one process, one point each, more processes than points.
CASES = [(50, 5), (5, 2), (50, 3), (50, 4), (50, 1), (7, 6), (4, 4), (2, 3), (1, 5)]


def check(function: Callable) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    for points, processes in CASES:
        try:
            _check_shares(points, processes, call(function, points, processes))
        except Fault as fault:
            return (f'for {_counted(points, "point")} and {processes} process{"es" if processes > 1 else ""} '
                    f'{fault}')
    return None


def _check_shares(points, processes, shares):
    """Raises a Fault if a point is in no share or in two, if sizes differ by more than one, or if a weight is wrong."""
    if not isinstance(shares, (list, tuple)):
        raise Fault(f'it returns {type(shares).__name__}; a list of shares is right')
    if len(shares) != processes:
        raise Fault(f'it returns {_counted(len(shares), "share")} instead of {processes}')
    owners = [[] for _ in range(points)]
    for p, share in enumerate(shares):
        triple = numeric(share)
        if triple is None or triple.shape != (3,):
            raise Fault(f'share {p} is {share!r}; a tuple (first, end, weight) is right')
        first, end, _ = triple
        if first % 1 or end % 1:
            raise Fault(f'share {p} is from {first:g} to {end:g}; whole numbers are right')
        if not 0 <= first <= end <= points:
            raise Fault(f'share {p} is from {first:g} to {end:g}; 0 <= first <= end <= {points} is right')
        for i in range(int(first), int(end)):
            owners[i].append(p)
    for i, own in enumerate(owners):
        if not own:
            raise Fault(f'point {i} is in no share')
        if len(own) > 1:
            raise Fault(f'point {i} is in the shares {own[0]} and {own[1]}')
    sizes = [int(end - first) for first, end, _ in shares]
    smallest, largest = np.argmin(sizes), np.argmax(sizes)
    if sizes[largest] > sizes[smallest] + 1:
        raise Fault(f'share {largest} has {_counted(sizes[largest], "point")} and share {smallest} has '
                    f'{sizes[smallest]}; at most one more is right')
    for p, (size, (_, _, weight)) in enumerate(zip(sizes, shares)):
        if not np.isclose(weight, size / points):
            raise Fault(f'share {p}, of {_counted(size, "point")}, has the weight {weight:.4g}; {size}/{points} = '
                        f'{size / points:.4g} is right')


def _counted(number, noun):
    return f'{number} {noun}' + ('' if number == 1 else 's')
