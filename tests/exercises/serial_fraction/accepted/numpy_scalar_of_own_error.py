import numpy as np


class OneDevice(ValueError):
    pass


def serial_fraction(devices, speed_up):
    if devices < 2:
        raise OneDevice(devices)
    return np.float64(np.divide(devices / speed_up - 1, devices - 1))
