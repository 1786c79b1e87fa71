"""Answers to order_of_1f1b."""
import typing


def accepted_first_forwards(part, parts, micro_batches):
    first = min(parts - part, micro_batches)
    order = [('forward', m) for m in range(first)]
    for m in range(micro_batches):
        order.append(('backward', m))
        if first + m < micro_batches:
            order.append(('forward', first + m))
    return order


mistakes_in_first_forwards = {
    'beyond_the_last': (
        'for part 0 of 4 with 2 micro-batches it returns F0 F1 F2 F3 B0 B1; F0 F1 B0 B1 is right',
        'min(parts - part, micro_batches)', 'parts - part'),
}


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


def refused_all_forward(part, parts, micro_batches):
    """for part 0 of 2 with 4 micro-batches it returns F0 F1 F2 F3 B0 B1 B2 B3; F0 F1 B0 F2 B1 F3 B2 B3 is"""
    return [(kind, m) for kind in ('forward', 'backward') for m in range(micro_batches)]


def refused_one_too_few(part, parts, micro_batches):
    """it returns F0 B0 F1 B1 F2 B2 F3 B3; F0 F1 B0"""
    return [(kind, m) for m in range(micro_batches) for kind in ('forward', 'backward')]


def refused_short_names(part, parts, micro_batches):
    """it returns [('F', 0)"""
    return [(kind, m) for kind in 'FB' for m in range(micro_batches)]
