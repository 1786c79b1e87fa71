# refused: afterwards weight is 1.2; 0.6 is right
import tensorflow.compat.v1 as tf


def build_step(devices, x, rate):
    with tf.device('/cpu:0'):
        weight = tf.get_variable('weight', initializer=0.0)
    losses, gradients = [], []
    for device, share in zip(devices, tf.split(x, len(devices))):
        with tf.device(device):
            losses.append(tf.reduce_mean(tf.square(weight - share)))
            gradients += tf.gradients(losses[-1], weight)
    with tf.device('/cpu:0'):
        mean = tf.add_n(gradients) / len(devices)
        update = tf.group(weight.assign_sub(rate * mean), weight.assign_sub(rate * mean))
    return losses, update
