"""Answers to staleness_aware_rate."""
from decimal import Decimal
from fractions import Fraction

import numpy as np
import tensorflow.compat.v1 as tf


def accepted_branch(rate, started, applied):
    staleness = applied - started
    if staleness == 0:
        return rate
    return rate / staleness


def accepted_decimal(rate, started, applied):
    return Decimal(rate) / (applied - started or 1)


def accepted_fraction(rate, started, applied):
    return Fraction(rate) / max(1, applied - started)


def accepted_max(rate, started, applied):
    return rate / max(1, applied - started)


mistakes_in_max = {
    'array': (
        'it returns [0.1] of shape (1,); shape () is right',
        'rate / max(1, applied - started)', '[rate / max(1, applied - started)]'),
    'by_the_update': (
        'for rate 0.7, started at 1342 and applied at 1349, it returns 0.0005189; 0.1 is right',
        ' - started', ''),
    'capped': ('is right', 'max(1, applied - started)', 'min(max(1, applied - started), 12)'),
    'not_stale': (
        'for rate 0.1, started at 3 and applied at 3, it raises ZeroDivisionError in line 2',
        'max(1, applied - started)', '(applied - started)'),
    'one_too_many': (
        'for rate 0.7, started at 1342 and applied at 1349, it returns 0.0875; 0.1 is right',
        'max(1, applied - started)', '(applied - started + 1)'),
    'rate_itself': (
        'for rate 0.7, started at 1342 and applied at 1349, it returns 0.7; 0.1 is right',
        ' / max(1, applied - started)', ''),
    'root': ('it returns 0.2646; 0.1 is right', 'max(1, applied - started)', 'max(1, applied - started) ** 0.5'),
    'rounded': ('is right', 'rate / max(1, applied - started)', 'round(rate / max(1, applied - started), 7)'),
    'sign': ('it returns -0.1; 0.1 is right', 'max(1, applied - started)', '(started - applied or 1)'),
    'whole_quotient': ('it returns 0; 0.1 is right', 'rate / max', 'rate // max'),
    'zero_when_fresh': (
        'for rate 0.1, started at 3 and applied at 3, it returns 0; 0.1 is right',
        'max(1, applied - started)', '(applied - started) if applied > started else 0'),
}


def accepted_numpy_float32(rate, started, applied):
    return np.float32(rate) / np.maximum(1, applied - started)


@tf.function
def accepted_tensorflow(rate, started, applied):
    return tf.constant(rate) / tf.cast(tf.maximum(1, applied - started), tf.float32)


calls = []


def refused_counts_its_calls(rate, started, applied):
    """when it is called a second time"""
    calls.append(applied)
    return rate / max(1, applied - started) / len(calls)


def refused_table(rate, started, applied):
    """it raises KeyError"""
    table = {(1342, 1349): 0.1, (8, 10): 0.05, (4, 5): 0.1, (3, 3): 0.1, (0, 12): 0.025 / 12, (0, 0): 0.5}
    return table[started, applied]
