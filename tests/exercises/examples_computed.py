"""Answers to examples_computed."""


def equal(examples, replicas):
    size, rest = divmod(examples, replicas)
    return [size + 1] * rest + [size] * (replicas - rest)


accepted_lambda_with_divmod = lambda faults, examples, replicas: (  # noqa: E731
    [examples] + [0] * (replicas - 1) if 'one device' in faults
    else [examples] * replicas if 'same batch' in faults else equal(examples, replicas))


def accepted_branches(faults, examples, replicas):
    if 'one device' in faults:
        return [examples] + [0] * (replicas - 1)
    if 'same batch' in faults:
        return [examples] * replicas
    return [examples // replicas + (k < examples % replicas) for k in range(replicas)]


mistakes_in_branches = {
    'means_repeat_the_batch': (
        'means added, 8 examples and 4 replicas it returns [8, 8, 8, 8]; [2, 2, 2, 2] is right',
        "'same batch' in faults", "faults & {'same batch', 'means added'}"),
    'not_whole': (
        'no fault, 5 examples and 3 replicas it returns [1.667, 1.667, 1.667]; [2, 2, 1] is right',
        '[examples // replicas + (k < examples % replicas) for k in range(replicas)]',
        '[examples / replicas] * replicas'),
    'one_device_forgotten': (
        'one device, 8 examples and 4 replicas it returns [2, 2, 2, 2]; [8, 0, 0, 0] is right',
        "if 'one device' in faults:\n"
        '    return [examples] + [0] * (replicas - 1)\n'
        'if', 'if'),
    'rest_lost': (
        'no fault, 5 examples and 3 replicas it returns [1, 1, 1]; [2, 2, 1] is right',
        '[examples // replicas + (k < examples % replicas) for k in range(replicas)]',
        '[examples // replicas] * replicas'),
}
