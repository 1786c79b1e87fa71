import typing


class Work(typing.NamedTuple):
    kind: str
    m: int


def order_of_1f1b(part, parts, micro_batches):
    first = min(parts - part, micro_batches)
    yield from (Work('forward', m) for m in range(first))
    for m in range(micro_batches):
        yield Work('backward', m)
        if first + m < micro_batches:
            yield Work('forward', first + m)
