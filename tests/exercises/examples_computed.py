"""Answers to examples_computed."""
import math

import numpy as np


def accepted_generator(faults, examples, replicas):
    count = 1 if 'one device' in faults else replicas
    for k in range(replicas):
        if k >= count:
            yield 0
        elif 'same batch' in faults:
            yield examples
        else:
            yield (examples + count - 1 - k) // count


def equal(examples, replicas):
    size, rest = divmod(examples, replicas)
    return [size + 1] * rest + [size] * (replicas - rest)


accepted_lambda_with_divmod = lambda faults, examples, replicas: (  # noqa: E731
    [examples] + [0] * (replicas - 1) if 'one device' in faults
    else [examples] * replicas if 'same batch' in faults else equal(examples, replicas))


def accepted_numpy(faults, examples, replicas):
    count = 1 if 'one device' in faults else replicas
    sizes = np.zeros(replicas)
    sizes[:count] = examples if 'same batch' in faults else [len(part) for part in np.array_split(
        np.zeros(examples), count)]
    return sizes


def accepted_one_at_a_time(faults, examples, replicas):
    count = 1 if 'one device' in faults else replicas
    sizes = [0] * replicas
    for i in range(examples):
        for k in range(count) if 'same batch' in faults else [i % count]:
            sizes[k] += 1
    return sizes


def accepted_tuple(faults, examples, replicas):
    rest = (0,) * (replicas - 1)
    if 'one device' in faults:
        return (examples, *rest)
    if 'same batch' in faults:
        return replicas * (examples,)
    return tuple(math.ceil((examples - k) / replicas) for k in range(replicas))


def accepted_branches(faults, examples, replicas):
    if 'one device' in faults:
        return [examples] + [0] * (replicas - 1)
    if 'same batch' in faults:
        return [examples] * replicas
    return [examples // replicas + (k < examples % replicas) for k in range(replicas)]


mistakes_in_branches = {
    'all_have_the_first_share': (
        'same batch, 8 examples and 4 replicas it returns [2, 2, 2, 2]; [8, 8, 8, 8] is right',
        '[examples] * replicas', '[examples // replicas] * replicas'),
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
    'one_number_for_one_device': (
        'one device, 8 examples and 4 replicas it returns [8] of shape (1,); shape (4,) is right',
        ' + [0] * (replicas - 1)', ''),
    'rest_lost': (
        'no fault, 5 examples and 3 replicas it returns [1, 1, 1]; [2, 2, 1] is right',
        '[examples // replicas + (k < examples % replicas) for k in range(replicas)]',
        '[examples // replicas] * replicas'),
    'rest_to_the_last': (
        'no fault, 5 examples and 3 replicas it returns [1, 1, 3]; [2, 2, 1] is right',
        '[examples // replicas + (k < examples % replicas) for k in range(replicas)]',
        '[examples // replicas] * (replicas - 1) + [examples - (replicas - 1) * (examples // replicas)]'),
    'rounded_up': (
        'no fault, 5 examples and 3 replicas it returns [2, 2, 2]; [2, 2, 1] is right',
        '[examples // replicas + (k < examples % replicas) for k in range(replicas)]',
        '[-(-examples // replicas)] * replicas'),
    'same_batch_first': (
        'one device and same batch, 8 examples and 4 replicas it returns [8, 8, 8, 8]; [8, 0, 0, 0] is right',
        "'one device' in faults", "'one device' in faults and 'same batch' not in faults"),
    'table': (
        'is right',
        '[examples // replicas + (k < examples % replicas) for k in range(replicas)]',
        '{(8, 4): [2, 2, 2, 2], (5, 3): [2, 2, 1]}.get((examples, replicas), [1] * replicas)'),
}


def refused_one_device_is_a_share(faults, examples, replicas):
    """one device, 8 examples and 4 replicas it returns [2, 0, 0, 0]; [8, 0, 0, 0] is right"""
    sizes = [examples // replicas + (k < examples % replicas) for k in range(replicas)]
    if 'same batch' in faults:
        sizes = [examples] * replicas
    if 'one device' in faults:
        sizes[1:] = [0] * (replicas - 1)
    return sizes


def refused_total_only(faults, examples, replicas):
    """no fault, 8 examples and 4 replicas it returns 8 of shape (); shape (4,) is right"""
    return examples * replicas if 'same batch' in faults and 'one device' not in faults else examples
