# refused: the weight afterwards is 0.4; 0.7 is right
import tensorflow.compat.v1 as tf


def step_with_losses(devices, weight, read, loss_of, rate):
    losses, gradients = [], []
    for k, device in enumerate(devices):
        with tf.device(device):
            value = read(k)
            losses.append(loss_of(k, value))
            gradients += tf.gradients(losses[k], value)
    with tf.control_dependencies(losses):
        return losses, tf.group([weight.assign_sub(rate * tf.add_n(gradients) / len(devices)) for _ in range(2)])
