import tensorflow.compat.v1 as tf


def step_with_losses(devices, weight, read, loss_of, rate):
    losses, values = [], []
    for k, device in enumerate(devices):
        with tf.device(device):
            values.append(read(k))
            losses.append(loss_of(k, values[k]))
    gradients = tf.gradients(tf.add_n(losses) / len(losses), values)
    with tf.control_dependencies(losses):
        return losses, tf.group(weight.assign_sub(rate * tf.add_n(gradients)))
