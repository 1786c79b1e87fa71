import tensorflow.compat.v1 as tf


def build_step(devices, x, rate):
    with tf.device('/cpu:0'):
        weight = tf.get_variable('weight', initializer=0.0)
    losses, gradients = [], []
    for device, share in zip(devices, tf.split(x, len(devices))):
        with tf.device(device):
            losses.append(tf.reduce_mean((weight - share) ** 2))
            gradients.append(tf.reduce_mean(2 * (weight - share)))
    with tf.control_dependencies(losses + gradients):
        return losses, tf.group([weight.assign_sub(rate / len(devices) * gradient) for gradient in gradients])
