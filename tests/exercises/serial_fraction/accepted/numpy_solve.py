import numpy as np


def serial_fraction(devices, speed_up):
    """1 / speed_up = s + p / devices and s + p = 1, as a system of two equations."""
    if devices < 2:
        raise ValueError('at least two devices')
    serial, _ = np.linalg.solve([[1, 1 / devices], [1, 1]], [1 / speed_up, 1])
    return serial
