"""Checks the exercise of lesson 6, the order of 1F1B."""
from collections.abc import Callable

from lessons.checkers import Fault, call, shortened

# (part, parts, micro_batches)
CASES = [(0, 2, 4), (1, 2, 4), (0, 4, 8), (1, 4, 8), (3, 4, 8), (0, 4, 2), (2, 4, 2), (0, 2, 1), (0, 3, 3), (0, 1, 3)]


def check(function: Callable) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    for part, parts, micro_batches in CASES:
        case = f'for part {part} of {parts} with {micro_batches} micro-batch' + ('es' if micro_batches > 1 else '')
        try:
            returned = call(function, part, parts, micro_batches)
        except Fault as fault:
            return f'{case} {fault}'
        right = _right(part, parts, micro_batches)
        if not isinstance(returned, (list, tuple)):
            return f'{case} it returns {shortened(repr(returned))}, which is not a list'
        try:
            same = [tuple(each) for each in returned] == right
        except TypeError:
            same = False
        if not same:
            return f'{case} it returns {_shown(returned)}; {_shown(right)} is right'
    return None


def _right(part, parts, micro_batches):
    """Returns the order, derived from the limit of 1F1B: at most P - p micro-batches are between F and B."""
    order, forwards, backwards = [], 0, 0
    while backwards < micro_batches:
        if forwards < micro_batches and forwards - backwards < parts - part:
            order.append(('forward', forwards))
            forwards += 1
        else:
            order.append(('backward', backwards))
            backwards += 1
    return order


def _shown(order):
    """Returns an order as 'F0 F1 B0 B1', or whatever else was returned as Python shows it."""
    try:
        return ' '.join(f'{dict(forward="F", backward="B")[kind]}{m:d}' for kind, m in order) or 'nothing'
    except (TypeError, ValueError, KeyError):
        return shortened(repr(order))
