def order_of_1f1b(part, parts, micro_batches):
    forwards = 0
    for m in range(micro_batches):
        while forwards < min(m + parts - part, micro_batches):
            yield 'forward', forwards
            forwards += 1
        yield 'backward', m
