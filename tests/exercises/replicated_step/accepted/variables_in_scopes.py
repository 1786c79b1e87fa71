import tensorflow.compat.v1 as tf


def replicated_step(devices, x, rate):
    weights, losses, gradients, updates = [], [], [], []
    for k, (device, share) in enumerate(zip(devices, tf.split(x, len(devices)))):
        with tf.device(device):
            with tf.variable_scope(f'replica_{k}'):
                weights.append(tf.get_variable('weight', [], initializer=tf.zeros_initializer()))
            losses.append(tf.reduce_mean(tf.square(weights[k] - share)))
            gradients += tf.gradients(losses[k], weights[k])
    for device, weight in zip(devices, weights):
        with tf.device(device):
            updates.append(weight.assign_sub(rate * tf.add_n(gradients) / len(devices)))
    return losses, tf.group(updates)
