"""Answers to after_update."""
from fractions import Fraction

import numpy as np
import tensorflow.compat.v1 as tf


def shares_of(faults, x, replicas):
    count = 1 if 'one device' in faults else replicas
    return [x] * count if 'same batch' in faults else np.array_split(x, count)


def accepted_array_of_one_number(faults, w, x, replicas, rate):
    count = 1 if 'one device' in faults else replicas
    shares = [x for _ in range(count)] if 'same batch' in faults else np.array_split(x, count)
    gradients = [2 * (w - share) / (share.size if 'means added' in faults else x.size) for share in shares]
    return np.asarray(w - rate * np.concatenate(gradients).sum())


def accepted_closed_form(faults, w, x, replicas, rate):
    count = 1 if 'one device' in faults else replicas
    if 'same batch' in faults:
        step = count * np.mean(w - x)
    elif 'means added' in faults:
        step = sum(w - np.mean(share) for share in np.array_split(x, count))
    else:
        step = w - np.mean(x)
    return w - 2 * rate * step


def accepted_fractions(faults, w, x, replicas, rate):
    count = 1 if 'one device' in faults else replicas
    x = [Fraction(float(value)) for value in x]
    borders = [len(x) // count * k + min(k, len(x) % count) for k in range(count + 1)]
    shares = [x] * count if 'same batch' in faults else [x[a:b] for a, b in zip(borders, borders[1:])]
    step = sum(2 * sum(Fraction(w) - value for value in share) / (len(share) if 'means added' in faults else len(x))
               for share in shares)
    return Fraction(w) - Fraction(rate) * step


def accepted_plain_loops(faults, w, x, replicas, rate):
    count = 1 if 'one device' in faults else replicas
    total, first = 0.0, 0
    for k in range(count):
        size = len(x) // count + (k < len(x) % count)
        indices = range(len(x)) if 'same batch' in faults else range(first, first + size)
        first += size
        for i in indices:
            total += 2 * (w - float(x[i])) / (len(indices) if 'means added' in faults else len(x))
    return w - rate * total


def accepted_tensorflow_gradient(faults, w, x, replicas, rate):
    count = 1 if 'one device' in faults else replicas
    shares = [x] * count if 'same batch' in faults else np.array_split(x, count)
    with tf.Graph().as_default(), tf.Session() as session:
        start = tf.constant(w, tf.float64)
        losses = [tf.reduce_sum(tf.square(start - share)) / (len(share) if 'means added' in faults else len(x))
                  for share in shares]
        return session.run(start - rate * tf.gradients(losses, start)[0])


def accepted_loop_over_shares(faults, w, x, replicas, rate):
    gradient = 0
    for share in shares_of(faults, x, replicas):
        gradient += 2 * np.sum(w - share) / (len(share) if 'means added' in faults else len(x))
    return w - rate * gradient


mistakes_in_loop_over_shares = {
    'changes_the_batch': (
        'it changes its argument x from [1, 2, 3, 4] to',
        'gradient = 0',
        'x *= -1\n'
        'x += w\n'
        'gradient = 0',
        'w - share', 'share'),
    'half_gradient': (
        'no fault, w 0, x [1, 2, 3, 4], 2 replicas and rate 0.1 it returns 0.25; 0.5 is right',
        '2 * np.sum', 'np.sum'),
    'one_device_ignored': (
        'means added and one device, w 0, x [1, 2, 3, 4], 2 replicas and rate 0.1 it returns 1; 0.5 is right',
        'faults, x', "faults - {'one device'}, x"),
    'uphill': (
        'no fault, w 0, x [1, 2, 3, 4], 2 replicas and rate 0.1 it returns -0.5; 0.5 is right',
        'w - rate', 'w + rate'),
}


def refused_equal_shares_only(faults, w, x, replicas, rate):
    """means added, w 0.5, x [1, 2, 6], 2 replicas and rate 0.25 it returns 3; 3.75 is right"""
    factor = replicas if faults & {'means added', 'same batch'} and 'one device' not in faults else 1
    return w - rate * factor * 2 * np.mean(w - x)


def refused_faults_multiply(faults, w, x, replicas, rate):
    """means added and same batch, w 0, x [1, 2, 3, 4], 2 replicas and rate 0.1 it returns 2; 1 is right"""
    gradient = 2 * np.mean(w - x)
    if 'one device' not in faults:
        gradient *= replicas ** len(faults & {'means added', 'same batch'})
    return w - rate * gradient


def refused_first_share_for_all(faults, w, x, replicas, rate):
    """same batch, w 0, x [1, 2, 3, 4], 2 replicas and rate 0.1 it returns 0.3; 1 is right"""
    shares = shares_of(faults - {'same batch'}, x, replicas)
    if 'same batch' in faults:
        shares = [shares[0]] * len(shares)
    divisors = [len(share) if 'means added' in faults else len(x) for share in shares]
    return w - rate * sum(2 * np.sum(w - share) / divisor for share, divisor in zip(shares, divisors))


def refused_mean_of_means(faults, w, x, replicas, rate):
    """no fault, w 0.5, x [1, 2, 6], 2 replicas and rate 0.25 it returns 2.125; 1.75 is right"""
    means = [2 * np.mean(w - share) for share in shares_of(faults, x, replicas)]
    return w - rate * (np.sum(means) if 'means added' in faults or 'same batch' in faults else np.mean(means))


def refused_one_fault_at_a_time(faults, w, x, replicas, rate):
    """means added and one device, w 0, x [1, 2, 3, 4], 2 replicas and rate 0.1 it returns 1; 0.5 is right"""
    fault = min(faults) if faults else ''
    count = 1 if fault == 'one device' else replicas
    shares = [x] * count if fault == 'same batch' else np.array_split(x, count)
    divisors = [len(share) if fault == 'means added' else len(x) for share in shares]
    return w - rate * sum(2 * np.sum(w - share) / divisor for share, divisor in zip(shares, divisors))


def refused_only_a_share_on_one_device(faults, w, x, replicas, rate):
    """one device, w 0, x [1, 2, 3, 4], 2 replicas and rate 0.1 it returns 0.15; 0.5 is right"""
    shares = shares_of(faults - {'one device'}, x, replicas)
    shares = shares[:1] if 'one device' in faults else shares
    divisors = [len(share) if 'means added' in faults else len(x) for share in shares]
    return w - rate * sum(2 * np.sum(w - share) / divisor for share, divisor in zip(shares, divisors))


def refused_same_batch_harmless(faults, w, x, replicas, rate):
    """same batch, w 0, x [1, 2, 3, 4], 2 replicas and rate 0.1 it returns 0.5; 1 is right"""
    if 'means added' in faults and 'one device' not in faults:
        return w - rate * sum(2 * np.mean(w - share) for share in shares_of(faults, x, replicas))
    return w - rate * 2 * np.mean(w - x)


def refused_starts_at_zero(faults, w, x, replicas, rate):
    """no fault, w 0.5, x [1, 2, 6], 2 replicas and rate 0.25 it returns 1.5; 1.75 is right"""
    gradient = 0
    for share in shares_of(faults, x, replicas):
        gradient += 2 * np.sum(-share) / (len(share) if 'means added' in faults else len(x))
    return -rate * gradient
