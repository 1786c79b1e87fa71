"""Checks the exercise of lesson 7: the order of 1F1B."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call, counted, shortened, whole

HINTS = {'order_of_1f1b': [
    ('as a list of pairs', "F0 stands for the pair ('forward', 0), and B0 for ('backward', 0), with whole numbers."),
    # Of the cases, the first with fewer micro-batches than a part begins with.
    ('part 0 of 4 with 2 ', 'there are fewer micro-batches than S - s, with which part s would begin.'),
    'the last part begins with one forward. With how many does the part before it begin?',
    'after the first forwards come one backward and one forward, in turns, until no forward is left.']}

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
    """Returns the pairs that the function returned, as tuples; None if it is no list of ('forward', 0) and the like."""
    try:
        order = [(kind, whole(m)) for kind, m in returned]
    except (TypeError, ValueError):
        return None
    return order if all(kind in ('forward', 'backward') and m is not None for kind, m in order) else None


def _shown(order):
    """Returns an order as 'F0 F1 B0 B1'."""
    return shortened(' '.join(f'{kind[0].upper()}{m}' for kind, m in order) or 'nothing')
