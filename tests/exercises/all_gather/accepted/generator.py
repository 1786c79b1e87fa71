def all_gather(num_devices):
    has = list(range(num_devices))
    for _ in range(num_devices - 1):
        yield tuple(has)
        has = has[1:] + has[:1]
