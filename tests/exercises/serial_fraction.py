"""Answers to serial_fraction."""
from fractions import Fraction


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
    'one_minus_efficiency': (
        'it returns 0.25; 0.1111 is right',
        '(1 / speed_up - 1 / devices) / (1 - 1 / devices)', '1 - speed_up / devices'),
    'swapped_arguments': ('is right', 'devices, speed_up', 'speed_up, devices'),
}


def refused_one_device_divides_by_zero(devices, speed_up):
    """for 1 device and the speed-up 1 it raises ZeroDivisionError; a ValueError is right"""
    return (1 / speed_up - 1 / devices) / (1 - 1 / devices)
