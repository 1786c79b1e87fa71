"""Answers to all_gather."""
import functools


def accepted_comprehension(num_devices):
    return [[(device + step) % num_devices for device in range(num_devices)] for step in range(num_devices - 1)]


mistakes_in_comprehension = {
    'a_step_too_many': ('for 2 devices the number of steps is 2; 1 is right', 'num_devices - 1', 'num_devices'),
    'floats': ('step 1 is not 2 whole numbers', 'for device', '/ 1 for device'),
    'other_direction': (
        'for 3 devices device 0 sends chunk 2 in step 2, which it does not have yet; it has chunks 0 and 1',
        'device + step', 'device - step'),
}


def both_directions(sign, num_devices):
    return [[(device + sign * step) % num_devices for device in range(num_devices)] for step in range(num_devices - 1)]


accepted_partial = functools.partial(both_directions, 1)


def refused_own_chunk_always(num_devices):
    """for 3 devices device 0 ends with chunks 0 and 1 only; all 3 are right"""
    return [list(range(num_devices))] * (num_devices - 1)
