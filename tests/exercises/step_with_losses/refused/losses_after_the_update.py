# refused: what is fetched as losses with the update is [2.1]; [3] is right
import tensorflow.compat.v1 as tf


def step_with_losses(devices, weight, read, loss_of, rate):
    gradients = []
    for k, device in enumerate(devices):
        with tf.device(device):
            value = read(k)
            gradients += tf.gradients(loss_of(k, value), value)
    update = weight.assign_sub(rate * tf.add_n(gradients) / len(devices)).op
    losses = []
    for k, device in enumerate(devices):
        with tf.device(device), tf.control_dependencies([update]):
            losses.append(loss_of(k, read(k)))
    return losses, update
