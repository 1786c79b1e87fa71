"""Solutions of the exercises of lesson 3."""
import tensorflow.compat.v1 as tf


def all_gather(num_devices):
    """Each device first sends its own chunk, and then always the one that it has just received."""
    return [[(device + step) % num_devices for device in range(num_devices)] for step in range(num_devices - 1)]


def replicated_step(devices, x, rate):
    """The sum of the gradients is sent to each device, which makes its own update."""
    weights, losses, gradients, updates = [], [], [], []
    for k, (device, share) in enumerate(zip(devices, tf.split(x, len(devices)))):
        with tf.device(device):
            weights.append(tf.get_variable(f'weight_{k}', initializer=0.0))
            losses.append(tf.reduce_mean(tf.square(weights[k] - share)))
            gradients += tf.gradients(losses[k], weights[k])
    for device, weight in zip(devices, weights):
        with tf.device(device):
            updates.append(weight.assign_sub(rate * tf.add_n(gradients) / len(devices)).op)
    return losses, tf.group(updates)
