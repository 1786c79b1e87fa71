"""Answers to order_of_1f1b."""
import typing

import numpy as np


def accepted_first_forwards(part, parts, micro_batches):
    first = min(parts - part, micro_batches)
    order = [('forward', m) for m in range(first)]
    for m in range(micro_batches):
        order.append(('backward', m))
        if first + m < micro_batches:
            order.append(('forward', first + m))
    return order


mistakes_in_first_forwards = {
    'at_most_four_first': ('is right', 'part, micro_batches', 'part, micro_batches, 4'),
    'beyond_the_last': (
        'for part 0 of 4 with 2 micro-batches it returns F0 F1 F2 F3 B0 B1; F0 F1 B0 B1 is right',
        'min(parts - part, micro_batches)', 'parts - part'),
    'first_is_the_part': ('for part 0 of 2 with 4 micro-batches it returns F0 B0', 'parts - part', 'part + 1'),
    'floats': ("it returns [('forward', 0.0)", "'forward', m", "'forward', m / 1"),
    'numbers_from_1': (
        'it returns F1 F2 B1',
        "'forward', m", "'forward', m + 1",
        "'backward', m", "'backward', m + 1",
        "'forward', first + m", "'forward', first + m + 1"),
    'without_the_last': ('it returns F0 F1 B0 F2 B1 F3 B2;', 'range(micro_batches)', 'range(micro_batches - 1)'),
}


def accepted_generator(part, parts, micro_batches):
    forwards = 0
    for m in range(micro_batches):
        while forwards < min(m + parts - part, micro_batches):
            yield 'forward', forwards
            forwards += 1
        yield 'backward', m


class Work(typing.NamedTuple):
    kind: str
    m: int


def accepted_named_tuples(part, parts, micro_batches):
    first = min(parts - part, micro_batches)
    yield from (Work('forward', m) for m in range(first))
    for m in range(micro_batches):
        yield Work('backward', m)
        if first + m < micro_batches:
            yield Work('forward', first + m)


def accepted_numpy_numbers(part, parts, micro_batches):
    order, kept = [], []
    for m in np.arange(micro_batches):
        order.append(['forward', m])
        kept.append(m)
        if len(kept) == parts - part:
            order.append(['backward', kept.pop(0)])
    return order + [['backward', m] for m in kept]


def accepted_object_array(part, parts, micro_batches):
    order, begun = [], 0
    for m in range(micro_batches):
        while begun < micro_batches and begun - m < parts - part:
            order.append(('forward', begun))
            begun += 1
        order.append(('backward', m))
    return np.array(order, dtype=object)


def accepted_sorted(part, parts, micro_batches):
    times = [(2 * m, 'backward', m) for m in range(micro_batches)]
    times += [(2 * (m - parts + part) + 1, 'forward', m) for m in range(micro_batches)]
    return [(kind, m) for _, kind, m in sorted(times)]


def refused_all_forward(part, parts, micro_batches):
    """for part 0 of 2 with 4 micro-batches it returns F0 F1 F2 F3 B0 B1 B2 B3; F0 F1 B0 F2 B1 F3 B2 B3 is"""
    return [(kind, m) for kind in ('forward', 'backward') for m in range(micro_batches)]


def refused_divides(part, parts, micro_batches):
    """it raises ZeroDivisionError in line 3"""
    return [('forward', m) for m in range(parts // part)]


def refused_last_in_first_out(part, parts, micro_batches):
    """it returns F0 F1 B1"""
    order, kept = [], []
    for m in range(micro_batches):
        order.append(('forward', m))
        kept.append(m)
        if len(kept) == parts - part:
            order.append(('backward', kept.pop()))
    return order + [('backward', kept.pop()) for _ in list(kept)]


def refused_none(part, parts, micro_batches):
    """it returns None; F0 F1 B0 F2 B1 F3 B2 B3 is right, as a list of pairs"""
    print('F0 F1 B0 F2 B1 F3 B2 B3')


def refused_nothing(part, parts, micro_batches):
    """it returns nothing; F0 F1 B0 F2 B1 F3 B2 B3 is right"""
    return []


def refused_one_too_few(part, parts, micro_batches):
    """it returns F0 B0 F1 B1 F2 B2 F3 B3; F0 F1 B0"""
    return [(kind, m) for m in range(micro_batches) for kind in ('forward', 'backward')]


def refused_short_names(part, parts, micro_batches):
    """it returns [('F', 0)"""
    return [(kind, m) for kind in 'FB' for m in range(micro_batches)]


def refused_text(part, parts, micro_batches):
    """it returns 'F0 F1 B0'"""
    return 'F0 F1 B0'
