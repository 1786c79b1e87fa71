"""Answers to scaled_rate."""
from functools import partial

import numpy as np


def accepted_if_else(rate, batch, new_batch, curvature):
    scaled = rate * (new_batch / batch)
    if scaled * curvature > 1:
        return 1 / curvature
    return scaled


def accepted_minimum(rate, batch, new_batch, curvature):
    return min(rate * new_batch / batch, 1 / curvature)


mistakes_in_minimum = {
    'inverse': ('it returns 0.025; 0.4 is right', 'new_batch / batch', 'batch / new_batch'),
    'larger_of_both': ('it returns 1; 0.4 is right', 'return min', 'return max'),
    'limit_of_divergence': ('it returns 2; 1 is right', '1 / curvature', '2 / curvature'),
    'limit_only_for_larger_batches': (
        'for the rate 3 at 64, 64 and the curvature 1 it returns 3; 1 is right',
        'return',
        'if new_batch <= batch:\n'
        '    return rate * new_batch / batch\n'
        'return'),
    'limit_without_curvature': (
        'for the rate 0.1 at 1, 4 and the curvature 5 it returns 0.4; 0.2 is right',
        '1 / curvature', '1.0'),
    # Only grows with the batch.
    'never_smaller': (
        'for the rate 0.4 at 512, 128 and the curvature 1 it returns 0.4; 0.1 is right',
        'rate * new_batch / batch', 'max(rate, rate * new_batch / batch)'),
    'square_root': ('it returns 0.2; 0.4 is right', 'new_batch / batch', '(new_batch / batch) ** 0.5'),
    'times_the_curvature': ('is right', '1 / curvature', 'curvature'),
    'unscaled': ('it returns 0.1; 0.4 is right', ' * new_batch / batch', ''),
    'whole_factors': (
        'for the rate 0.4 at 512, 128 and the curvature 1 it returns 0; 0.1 is right',
        'new_batch / batch', '(new_batch // batch)'),
}


def accepted_numpy(rate, batch, new_batch, curvature):
    return np.minimum(np.float64(rate) / batch * new_batch, np.reciprocal(float(curvature)))


def _scaled(rate, batch, new_batch, curvature, fraction):
    return sorted([rate * new_batch / batch, fraction * 2 / curvature])[0]


accepted_partial = partial(_scaled, fraction=0.5)


def accepted_rate_of_an_example(rate, batch, new_batch, curvature):
    of_an_example = rate / batch
    largest_batch = 1 / (curvature * of_an_example)
    return of_an_example * min(new_batch, largest_batch)


def refused_limited_before_it_is_scaled(rate, batch, new_batch, curvature):
    """it returns 3.2; 1 is right"""
    return min(rate, 1 / curvature) * new_batch / batch


def refused_linear_without_a_limit(rate, batch, new_batch, curvature):
    """it returns 3.2; 1 is right"""
    return rate * new_batch / batch
