# refused: afterwards weight_0 is 1.2; 0.6 is right
import tensorflow.compat.v1 as tf


def replicated_step(devices, x, rate):
    weights, losses, gradients, updates = [], [], [], []
    for k, (device, share) in enumerate(zip(devices, tf.split(x, len(devices)))):
        with tf.device(device):
            weights.append(tf.get_variable(f'weight_{k}', initializer=0.0))
            losses.append(tf.reduce_mean(tf.square(weights[k] - share)))
            gradients += tf.gradients(losses[k], weights[k])
    for device, weight in zip(devices, weights):
        with tf.device(device):
            updates.append(weight.assign_sub(rate * tf.add_n(gradients) / len(devices)))
    with tf.control_dependencies(updates):
        again = [weight.assign_sub(rate * tf.add_n(gradients) / len(devices)) for weight in weights]
    return losses, tf.group(again)
