import tensorflow.compat.v1 as tf


def step_with_losses(devices, weight, read, loss_of, rate):
    losses, gradients = [], []
    for k, device in enumerate(devices):
        with tf.device(device):
            value = read(k)
            losses.append(loss_of(k, value))
            gradients += tf.gradients(losses[k], value)
    optimizer = tf.train.GradientDescentOptimizer(rate)
    with tf.control_dependencies(losses):
        return losses, optimizer.apply_gradients([(tf.add_n(gradients) / len(devices), weight)])
