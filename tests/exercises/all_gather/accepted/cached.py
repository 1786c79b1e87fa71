import functools


@functools.lru_cache
def all_gather(num_devices):
    return [[(device + step) % num_devices for device in range(num_devices)] for step in range(num_devices - 1)]
