# refused: the loss of tower 0 is 12.5; 2.5 is right
import tensorflow.compat.v1 as tf


def build_step(devices, x, rate):
    with tf.device('/cpu:0'):
        weight = tf.get_variable('weight', initializer=0.0)
    losses, gradients = [], []
    for device, share in zip(devices, tf.split(x, len(devices))):
        with tf.device(device):
            losses.append(tf.reduce_mean(tf.square(weight - x)))
            gradients += tf.gradients(losses[-1], weight)
    with tf.device('/cpu:0'):
        update = weight.assign_sub(rate * tf.add_n(gradients) / len(devices))
    return losses, update
