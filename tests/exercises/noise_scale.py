"""Answers to noise_scale."""
from fractions import Fraction

import numpy as np


# McCandlish et al. 2018, appendix A.1.
def accepted_as_in_the_paper(small, large, of_small, of_large):
    norm = (large * of_large - small * of_small) / (large - small)
    return (of_small - of_large) / (1 / small - 1 / large) / norm


def accepted_exact_fractions(small, large, of_small, of_large):
    of_small, of_large = Fraction(of_small), Fraction(of_large)
    noise = (of_small - of_large) / (Fraction(1, small) - Fraction(1, large))
    return float(noise / (of_large - noise / large))


def accepted_linear_solver(small, large, of_small, of_large):
    norm, noise = np.linalg.solve([[1, 1 / small], [1, 1 / large]], [of_small, of_large])
    return noise / norm


def accepted_one_quotient(small, large, of_small, of_large):
    return small * large * (of_small - of_large) / (large * of_large - small * of_small)


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
    # As if the squared norm of the noise fell with the square root of the batch.
    'falls_with_the_root': (
        'is right',
        '(1 / small - 1 / large)', '(small ** -0.5 - large ** -0.5)',
        'noise / small', 'noise / small ** 0.5'),
    'inverse': ('it returns 0.04167; 24 is right', 'noise / norm', 'norm / noise'),
    'noise_alone': ('it returns 48; 24 is right', 'return noise / norm', 'return noise'),
    # V / small instead of V.
    'noise_of_a_batch': ('it returns 6; 24 is right', 'return noise / norm', 'return noise / small / norm'),
    'norm_of_the_small_batch': ('it returns 3.429; 24 is right', 'norm = of_small - noise / small', 'norm = of_small'),
    # The norms instead of their squares.
    'not_squared': (
        'is right',
        'noise = ',
        'of_small, of_large = of_small ** 0.5, of_large ** 0.5\n'
        'noise = '),
    'order_matters': (
        'for batches of 16 and 4 with 5 and 14',
        'noise = ',
        'if small > large:\n'
        "    raise ValueError('the small batch comes first')\n"
        'noise = '),
    'positive_part_only': (
        'for batches of 16 and 4 with 5 and 14 it returns 0; 24 is right',
        '(of_small - of_large)', 'max(0, of_small - of_large)',
        'noise / norm', 'abs(noise / norm)'),
    'rounded': ('is right', 'noise / norm', 'round(noise / norm, 3)'),
}


# As if the large batch had no noise.
def refused_difference_is_the_noise(small, large, of_small, of_large):
    """it returns 7.2; 24 is right"""
    return small * (of_small - of_large) / of_large


# Only right where the large batch is four times the small one.
def refused_four_times_the_batch(small, large, of_small, of_large):
    """it returns -11.29; 24 is right"""
    norm = (4 * of_large - of_small) / 3
    return small * (of_small - norm) / norm
