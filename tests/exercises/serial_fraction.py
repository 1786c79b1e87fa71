"""Answers to serial_fraction."""
from fractions import Fraction

import numpy as np


def accepted_exact_fractions(devices, speed_up):
    if devices <= 1:
        raise ValueError('at least two devices')
    share = Fraction(1, devices)
    return float((1 / Fraction(speed_up) - share) / (1 - share))


def accepted_formula(devices, speed_up):
    if devices < 2:
        raise ValueError('one device says nothing')
    return (1 / speed_up - 1 / devices) / (1 - 1 / devices)


mistakes_in_formula = {
    'clipped_to_0_and_1': (
        'for 4 devices and the speed-up 5.714 it returns 0; -0.1 is right',
        '(1 / speed_up - 1 / devices) / (1 - 1 / devices)',
        'min(1, max(0, (1 / speed_up - 1 / devices) / (1 - 1 / devices)))'),
    # Amdahl's limit: the speed-up with any number of devices is 1 / s.
    'inverse_of_the_speed_up': (
        'it returns 0.3333; 0.1111 is right',
        '(1 / speed_up - 1 / devices) / (1 - 1 / devices)', '1 / speed_up'),
    'one_device_is_nan': (
        'for 1 device and the speed-up 1 it returns nan; to raise a ValueError is right',
        "raise ValueError('one device says nothing')", "return float('nan')"),
    'one_device_is_one': (
        'for 1 device and the speed-up 1 it returns 1; to raise a ValueError is right',
        "raise ValueError('one device says nothing')", 'return 1.0'),
    'one_device_is_zero': (
        'for 1 device and the speed-up 1 it returns 0; to raise a ValueError is right',
        "raise ValueError('one device says nothing')", 'return 0.0'),
    'one_minus_efficiency': (
        'it returns 0.25; 0.1111 is right',
        '(1 / speed_up - 1 / devices) / (1 - 1 / devices)', '1 - speed_up / devices'),
    # The share that is divided.
    'parallel_fraction': ('0.1111 is right', 'return ', 'return 1 - '),
    'rounded': (
        'is right',
        '(1 / speed_up - 1 / devices) / (1 - 1 / devices)',
        'round((1 / speed_up - 1 / devices) / (1 - 1 / devices), 2)'),
    'swapped_arguments': ('is right', 'devices, speed_up', 'speed_up, devices'),
    'without_the_denominator': ('it returns 0.08333; 0.1111 is right', ' / (1 - 1 / devices)', ''),
}


class OneDevice(ValueError):
    pass


def accepted_numpy_scalar_of_own_error(devices, speed_up):
    if devices < 2:
        raise OneDevice(devices)
    return np.float64(np.divide(devices / speed_up - 1, devices - 1))


# 1 / speed_up = s + p / devices and s + p = 1, as a system of two equations.
def accepted_numpy_solve(devices, speed_up):
    if devices < 2:
        raise ValueError('at least two devices')
    serial, _ = np.linalg.solve([[1, 1 / devices], [1, 1]], [1 / speed_up, 1])
    return serial


# The same formula, multiplied by speed_up * devices.
def accepted_without_fractions_of_one(devices, speed_up):
    if devices == 1:
        raise ValueError(f'{devices} device')
    return (devices - speed_up) / (speed_up * (devices - 1))


def refused_cases_of_the_page(devices, speed_up):
    """is right"""
    if devices < 2:
        raise ValueError
    known = {4: 1 / 9 if speed_up < 4 else -0.1, 2: 0.0, 8: 1.0}
    return known.get(devices, 0.1111)


def refused_one_device_divides_by_zero(devices, speed_up):
    """for 1 device and the speed-up 1 it raises ZeroDivisionError; to raise a ValueError is right"""
    return (1 / speed_up - 1 / devices) / (1 - 1 / devices)
