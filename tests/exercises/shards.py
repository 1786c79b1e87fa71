"""Answers to shards."""
import math
from itertools import zip_longest

import numpy as np


def accepted_array_filled(numbers, devices):
    size = int(np.ceil(len(numbers) / devices))
    filled = np.zeros([devices, size])
    for i, number in enumerate(numbers):
        filled[i // size, i % size] = number
    return filled


class Cut:
    def __call__(self, numbers, devices):
        padded = np.resize(numbers, -(-len(numbers) // devices) * devices)
        padded[len(numbers):] = 0
        return np.split(padded, devices)


accepted_callable = Cut()


def accepted_generator(numbers, devices):
    size = math.ceil(len(numbers) / devices)
    for d in range(devices):
        own = np.zeros(size, np.float32)
        part = numbers[d * size:(d + 1) * size]
        own[:len(part)] = part
        yield own


def accepted_lists(numbers, devices):
    numbers = list(numbers)
    size = (len(numbers) + devices - 1) // devices
    numbers += [0] * (size * devices - len(numbers))
    return [numbers[d * size:(d + 1) * size] for d in range(devices)]


def accepted_one_array(numbers, devices):
    return np.concatenate([numbers, np.zeros(-len(numbers) % devices)]).reshape(devices, -1)


def accepted_tuples(numbers, devices):
    size = -(-len(numbers) // devices)
    filled = tuple(zip_longest(*[iter(list(numbers) + [0] * (-len(numbers) % devices))] * size, fillvalue=0))
    return filled


def accepted_padded(numbers, devices):
    return np.pad(numbers, (0, -len(numbers) % devices)).reshape(devices, -1)


mistakes_in_padded = {
    'changes_its_argument': (
        'it changes its argument numbers',
        'return np.pad(numbers, (0, -len(numbers) % devices)).reshape(devices, -1)',
        'padded = np.pad(numbers, (0, -len(numbers) % devices)).reshape(devices, -1)\n'
        'numbers -= numbers\n'
        'return padded'),
    'interleaved': (
        '[[1, 4], [2, 5], [3, 0]]; [[1, 2], [3, 4], [5, 0]] is right',
        'reshape(devices, -1)', 'reshape(-1, devices).T'),
    'last_repeated': (
        '[5, 5]]; [[1, 2], [3, 4], [5, 0]] is right',
        '(0, -len(numbers) % devices)', "(0, -len(numbers) % devices), mode='edge'"),
    'nan_filled': (
        '[5, nan]]; [[1, 2], [3, 4], [5, 0]] is right',
        '(0, -len(numbers) % devices)', '(0, -len(numbers) % devices), constant_values=np.nan'),
    'whole': ('it returns [1, 2, 3, 4, 5, 0] of shape (6,); shape (3, 2) is right', '.reshape(devices, -1)', ''),
    'without_empty_devices': (
        'for [7] on 4 devices it returns [[7]] of shape (1, 1); shape (4, 1) is right',
        'return',
        'devices = min(devices, len(numbers))\n'
        'return'),
    'zeros_first': (
        '[[0, 1], [2, 3], [4, 5]]; [[1, 2], [3, 4], [5, 0]] is right',
        '0, -len(numbers) % devices', '-len(numbers) % devices, 0'),
}


def refused_array_split(numbers, devices):
    """it returns"""
    return np.array_split(numbers, devices)


def refused_one_too_large(numbers, devices):
    """for [1, 2, 3, 4] on 2 devices it returns [[1, 2, 3], [4, 0, 0]]"""
    size = len(numbers) // devices + 1
    return np.pad(numbers, (0, size * devices - len(numbers))).reshape(devices, size)


def refused_resized(numbers, devices):
    """[5, 1]]; [[1, 2], [3, 4], [5, 0]] is right"""
    size = -(-len(numbers) // devices)
    return np.resize(numbers, size * devices).reshape(devices, size)


def refused_rest_lost(numbers, devices):
    """of shape (3, 1); shape (3, 2) is right"""
    size = len(numbers) // devices
    return [np.array(numbers[d * size:(d + 1) * size]) for d in range(devices)]


def refused_rounded(numbers, devices):
    """shape ("""
    size = max(1, round(len(numbers) / devices))
    return np.pad(numbers, (0, max(0, size * devices - len(numbers))))[:size * devices].reshape(devices, size)


def refused_short_last(numbers, devices):
    """it returns"""
    size = math.ceil(len(numbers) / devices)
    return [numbers[d * size:(d + 1) * size] for d in range(devices)]
