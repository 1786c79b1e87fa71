"""Solutions of the exercises of lesson 1."""
import numpy as np
import tensorflow.compat.v1 as tf


def mean_of_sparse_gradients(gradients):
    """All rows of all towers, each divided by the number of towers. Rows that repeat add up."""
    values = np.concatenate([values for values, _ in gradients]) / len(gradients)
    return values, np.concatenate([indices for _, indices in gradients])


def build_step(devices, x, rate):
    """One variable before the loop, a loss and a gradient for each device, and one update with the mean gradient."""
    with tf.device('/cpu:0'):
        weight = tf.get_variable('weight', initializer=0.0)
    losses, gradients = [], []
    for device, share in zip(devices, tf.split(x, len(devices))):
        with tf.device(device):
            losses.append(tf.reduce_mean(tf.square(weight - share)))
            gradients += tf.gradients(losses[-1], weight)
    with tf.device('/cpu:0'):
        return losses, weight.assign_sub(rate * tf.add_n(gradients) / len(devices)).op
