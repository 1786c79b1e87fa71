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
            pairs = [(tf.reduce_mean(tf.stack(gradients), 0), weight)]
            updates.append(tf.train.GradientDescentOptimizer(rate).apply_gradients(pairs))
    return losses, tf.group(updates)
