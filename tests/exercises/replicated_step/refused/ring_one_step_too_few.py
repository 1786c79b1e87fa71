# refused: is right
import tensorflow.compat.v1 as tf


def replicated_step(devices, x, rate):
    weights, losses, gradients, updates = [], [], [], []
    for k, (device, share) in enumerate(zip(devices, tf.split(x, len(devices)))):
        with tf.device(device):
            weights.append(tf.get_variable(f'weight_{k}', initializer=0.0))
            losses.append(tf.reduce_mean(tf.square(weights[k] - share)))
            gradients += tf.gradients(losses[k], weights[k])
    sums, sent = list(gradients), list(gradients)
    for _ in range(len(devices) - 2):
        sent = sent[-1:] + sent[:-1]
        for k, device in enumerate(devices):
            with tf.device(device):
                sums[k] = sums[k] + sent[k]
    for k, device in enumerate(devices):
        with tf.device(device):
            updates.append(weights[k].assign_sub(rate * sums[k] / len(devices)))
    return losses, tf.group(updates)
