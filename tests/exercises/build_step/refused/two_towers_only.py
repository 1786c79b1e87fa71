# refused: the loss of tower 0 is 2.5; 12.5 is right
import tensorflow.compat.v1 as tf


def build_step(devices, x, rate):
    with tf.device('/cpu:0'):
        weight = tf.get_variable('weight', initializer=0.0)
    losses, gradients = [], []
    for device, share in zip(devices[:2], tf.split(x, 2)):
        with tf.device(device):
            losses.append(tf.reduce_mean(tf.square(weight - share)))
            gradients += tf.gradients(losses[-1], weight)
    with tf.device('/cpu:0'):
        update = weight.assign_sub(rate * tf.add_n(gradients) / 2)
    return losses, update
