"""Answers to after_update."""

import numpy as np
import tensorflow.compat.v1 as tf


def shares_of(faults, x, replicas):
    count = 1 if 'one device' in faults else replicas
    return [x] * count if 'same batch' in faults else np.array_split(x, count)


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
    'uphill': (
        'no fault, w 0, x [1, 2, 3, 4], 2 replicas and rate 0.1 it returns -0.5; 0.5 is right',
        'w - rate', 'w + rate'),
}


def refused_faults_multiply(faults, w, x, replicas, rate):
    """means added and same batch, w 0, x [1, 2, 3, 4], 2 replicas and rate 0.1 it returns 2; 1 is right"""
    gradient = 2 * np.mean(w - x)
    if 'one device' not in faults:
        gradient *= replicas ** len(faults & {'means added', 'same batch'})
    return w - rate * gradient


def refused_mean_of_means(faults, w, x, replicas, rate):
    """no fault, w 0.5, x [1, 2, 6], 2 replicas and rate 0.25 it returns 2.125; 1.75 is right"""
    means = [2 * np.mean(w - share) for share in shares_of(faults, x, replicas)]
    return w - rate * (np.sum(means) if 'means added' in faults or 'same batch' in faults else np.mean(means))


def refused_same_batch_harmless(faults, w, x, replicas, rate):
    """same batch, w 0, x [1, 2, 3, 4], 2 replicas and rate 0.1 it returns 0.5; 1 is right"""
    if 'means added' in faults and 'one device' not in faults:
        return w - rate * sum(2 * np.mean(w - share) for share in shares_of(faults, x, replicas))
    return w - rate * 2 * np.mean(w - x)
