"""Checks the exercise of lesson 7: the order of 1F1B."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call, counted, shortened, whole

HINTS = {'order_of_1f1b': [
    ('as a list of pairs', "F0 stands for the pair ('forward', 0), and B0 for ('backward', 0), with whole numbers."),
    # The first case with fewer micro-batches than the forwards that a part begins with.
    ('part 0 of 4 with 2 ', 'part s begins with S - s forwards, or with M if there are fewer micro-batches.'),
    'the last part begins with one forward. How many does the part before it begin with?',
    'after its first forwards, a part alternates: one backward, one forward, until no forward is left.']}

# (part, parts, micro_batches)
CASES = [(0, 2, 4), (1, 2, 4), (0, 4, 8), (1, 4, 8), (3, 4, 8), (0, 4, 2), (2, 4, 2), (0, 2, 1), (0, 3, 3), (0, 1, 3)]


def check_order_of_1f1b(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    cases = list(CASES)
    for _ in range(24):
        parts = int(random.integers(2, 17))
        cases.append((int(random.integers(parts)), parts, int(random.integers(1, 41))))
    for part, parts, micro_batches in cases:
        case = f'for part {part} of {parts} with {counted(micro_batches, "micro-batch", "micro-batches")}'
        try:
            returned = call(function, part, parts, micro_batches)
        except Fault as fault:
            return f'{case} {fault}'
        right = _right(part, parts, micro_batches)
        order = _order(returned)
        if order is None:
            return f'{case} it returns {shortened(repr(returned))}; {_shown(right)} is right, as a list of pairs'
        if order != right:
            return f'{case} it returns {_shown(order)}; {_shown(right)} is right'
    return None


def _right(part, parts, micro_batches):
    """Returns the order, derived from the limit of 1F1B: at most S - s micro-batches are between F and B."""
    order, forwards, backwards = [], 0, 0
    while backwards < micro_batches:
        if forwards < micro_batches and forwards - backwards < parts - part:
            order.append(('forward', forwards))
            forwards += 1
        else:
            order.append(('backward', backwards))
            backwards += 1
    return order


def _order(returned):
    """Converts a function's result to a list of tuples such as ('forward', 0); returns None if that fails."""
    try:
        order = [(kind, whole(m)) for kind, m in returned]
    except (TypeError, ValueError):
        return None
    return order if all(kind in ('forward', 'backward') and m is not None for kind, m in order) else None


def _shown(order):
    """Returns an order as 'F0 F1 B0 B1'."""
    return shortened(' '.join(f'{kind[0].upper()}{m}' for kind, m in order) or 'nothing')
