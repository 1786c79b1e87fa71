import tensorflow.compat.v1 as tf


def build_step(devices, x, rate):
    losses, gradients = [], []
    for k, device in enumerate(devices):
        with tf.device(device), tf.name_scope(f'tower_{k}'), tf.variable_scope('model', reuse=k > 0):
            with tf.device('/cpu:0'):
                weight = tf.get_variable('weight', [], initializer=tf.zeros_initializer())
            size = int(x.shape[0]) // len(devices)
            losses.append(tf.reduce_mean((weight - x[k * size:(k + 1) * size]) ** 2))
            gradients.append(tf.gradients(losses[k], weight)[0])
    return tuple(losses), weight.assign(weight - rate * tf.reduce_mean(tf.stack(gradients)))
