"""Answers to all_gather."""
import functools

import numpy as np
import tensorflow as tf


@functools.lru_cache
def accepted_cached(num_devices):
    return [[(device + step) % num_devices for device in range(num_devices)] for step in range(num_devices - 1)]


def accepted_comprehension(num_devices):
    return [[(device + step) % num_devices for device in range(num_devices)] for step in range(num_devices - 1)]


mistakes_in_comprehension = {
    'a_device_is_left_out': (
        'for 2 devices step 1 is not 2 whole numbers',
        'range(num_devices)', 'range(num_devices - 1)'),
    'a_step_too_many': ('for 2 devices the number of steps is 2; 1 is right', 'num_devices - 1', 'num_devices'),
    'chunks_of_two_rings': ('which it does not have yet', 'device + step', 'device + 2 * step'),
    'floats': ('step 1 is not 2 whole numbers', 'for device', '/ 1 for device'),
    'next_chunk_first': (
        'for 2 devices device 0 sends chunk 1 in step 1, which it does not have yet; it has chunk 0',
        'device + step', 'device + step + 1'),
    'no_modulo': (
        'for 3 devices device 2 sends chunk 3 in step 2; there are chunks 0 to 2',
        '(device + step) % num_devices', 'device + step'),
    'other_direction': (
        'for 3 devices device 0 sends chunk 2 in step 2, which it does not have yet; it has chunks 0 and 1',
        'device + step', 'device - step'),
}


def accepted_generator(num_devices):
    has = list(range(num_devices))
    for _ in range(num_devices - 1):
        yield tuple(has)
        has = has[1:] + has[:1]


def accepted_numpy(num_devices):
    return (np.arange(num_devices - 1)[:, None] + np.arange(num_devices)) % num_devices


def both_directions(sign, num_devices):
    return [[(device + sign * step) % num_devices for device in range(num_devices)] for step in range(num_devices - 1)]


accepted_partial = functools.partial(both_directions, 1)


def accepted_tensorflow(num_devices):
    return tf.math.floormod(tf.range(num_devices - 1)[:, None] + tf.range(num_devices), num_devices)


def refused_digits(num_devices):
    """it raises IndexError"""
    return [[int('0123456789'[(device + step) % num_devices]) for device in range(num_devices)]
            for step in range(num_devices - 1)]


def refused_none(num_devices):
    """for 2 devices it returns None; a list of steps is right"""
    print([[0, 1]])


def refused_one_device_is_forgotten(num_devices):
    """for 1 device it raises ZeroDivisionError in line 4"""
    others = num_devices - 1
    ring = [device % others for device in range(num_devices)]
    return [[(device + step) % num_devices for device, _ in enumerate(ring)] for step in range(others)]


def refused_one_step(num_devices):
    """for 3 devices the number of steps is 1; 2 is right"""
    return [list(range(num_devices))]


def refused_own_chunk_always(num_devices):
    """for 3 devices device 0 ends with chunks 0 and 1 only; all 3 are right"""
    return [list(range(num_devices))] * (num_devices - 1)


TABLE = {1: [], 2: [[0, 1]], 3: [[0, 1, 2], [1, 2, 0]], 4: [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1]],
         5: [[0, 1, 2, 3, 4], [1, 2, 3, 4, 0], [2, 3, 4, 0, 1], [3, 4, 0, 1, 2]]}


def refused_table(num_devices):
    """it raises KeyError in line 7"""
    return TABLE[num_devices]
