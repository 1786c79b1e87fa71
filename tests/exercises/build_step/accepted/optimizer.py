import tensorflow.compat.v1 as tf


def build_step(devices, x, rate):
    with tf.device('/cpu:0'):
        weight = tf.Variable(0.0, name='weight')
        optimizer = tf.train.GradientDescentOptimizer(rate)
    losses, gradients = [], []
    for device, share in zip(devices, tf.split(x, len(devices))):
        with tf.device(device):
            losses.append(tf.reduce_mean(tf.math.squared_difference(weight, share)))
        gradients += [gradient for gradient, _ in optimizer.compute_gradients(losses[-1])]
    return losses, optimizer.apply_gradients([(tf.add_n(gradients) / len(devices), weight)])
