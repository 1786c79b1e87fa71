# refused: because nothing orders them
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
        update = weight.assign_sub(rate * tf.add_n(gradients) / len(devices))
    for k, device in enumerate(devices):
        with tf.device(device):
            losses[k] = tf.identity(losses[k] + 0 * weight)
    return losses, update
