"""Answers to shards."""
import math

import numpy as np


def accepted_generator(numbers, devices):
    size = math.ceil(len(numbers) / devices)
    for d in range(devices):
        own = np.zeros(size, np.float32)
        part = numbers[d * size:(d + 1) * size]
        own[:len(part)] = part
        yield own


def accepted_padded(numbers, devices):
    return np.pad(numbers, (0, -len(numbers) % devices)).reshape(devices, -1)


mistakes_in_padded = {
    'interleaved': (
        '[[1, 4], [2, 5], [3, 0]]; [[1, 2], [3, 4], [5, 0]] is right',
        'reshape(devices, -1)', 'reshape(-1, devices).T'),
    'without_empty_devices': (
        'for [7] on 4 devices it returns [[7]] of shape (1, 1); shape (4, 1) is right',
        'return',
        'devices = min(devices, len(numbers))\n'
        'return'),
}


def refused_rest_lost(numbers, devices):
    """of shape (3, 1); shape (3, 2) is right"""
    size = len(numbers) // devices
    return [np.array(numbers[d * size:(d + 1) * size]) for d in range(devices)]


def refused_short_last(numbers, devices):
    """it returns"""
    size = math.ceil(len(numbers) / devices)
    return [numbers[d * size:(d + 1) * size] for d in range(devices)]
