"""Answers to noise_scale."""

import numpy as np


# The mean of the squared norm is a straight line over 1 / B.
def accepted_straight_line(small, large, of_small, of_large):
    slope, at_zero = np.polyfit([1 / small, 1 / large], [of_small, of_large], 1)
    return slope / at_zero


def accepted_two_equations(small, large, of_small, of_large):
    noise = (of_small - of_large) / (1 / small - 1 / large)
    norm = of_small - noise / small
    return noise / norm


mistakes_in_two_equations = {
    # |mean|^2 still has a part of the noise.
    'biased_norm': ('it returns 9.6; 24 is right', 'norm = of_small - noise / small', 'norm = of_large'),
    'inverse': ('it returns 0.04167; 24 is right', 'noise / norm', 'norm / noise'),
    'order_matters': (
        'for batches of 16 and 4 with 5 and 14',
        'noise = ',
        'if small > large:\n'
        "    raise ValueError('the small batch comes first')\n"
        'noise = '),
}


# As if the large batch had no noise.
def refused_difference_is_the_noise(small, large, of_small, of_large):
    """it returns 7.2; 24 is right"""
    return small * (of_small - of_large) / of_large
