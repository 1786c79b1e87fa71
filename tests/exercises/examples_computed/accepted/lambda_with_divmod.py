def equal(examples, replicas):
    size, rest = divmod(examples, replicas)
    return [size + 1] * rest + [size] * (replicas - rest)


examples_computed = lambda faults, examples, replicas: (  # noqa: E731
    [examples] + [0] * (replicas - 1) if 'one device' in faults
    else [examples] * replicas if 'same batch' in faults else equal(examples, replicas))
