import numpy as np


def all_gather(num_devices):
    return (np.arange(num_devices - 1)[:, None] + np.arange(num_devices)) % num_devices
