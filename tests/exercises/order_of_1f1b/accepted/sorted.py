def order_of_1f1b(part, parts, micro_batches):
    times = [(2 * m, 'backward', m) for m in range(micro_batches)]
    times += [(2 * (m - parts + part) + 1, 'forward', m) for m in range(micro_batches)]
    return [(kind, m) for _, kind, m in sorted(times)]
