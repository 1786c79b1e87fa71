# refused: because nothing orders them
import tensorflow.compat.v1 as tf


def step_with_losses(devices, weight, read, loss_of, rate):
    losses, gradients = [], []
    for k, device in enumerate(devices):
        with tf.device(device):
            value = read(k)
            losses.append(loss_of(k, value))
            gradients += tf.gradients(losses[k], value)
    with tf.device('/cpu:0'), tf.control_dependencies(gradients):
        return losses, weight.assign_sub(rate * tf.add_n(gradients) / len(devices))
