# refused: the weight after a batch of [1, 3, 4, 5, 12] is 1.8; 1 is right
import tensorflow.compat.v1 as tf


def weighted_step(devices, batch, rate):
    with tf.device('/cpu:0'):
        weight = tf.get_variable('weight', initializer=0.0)
        size = tf.shape(batch)[0]
    gradients = []
    for k, device in enumerate(devices):
        with tf.device(device):
            share = batch[k * size // len(devices):(k + 1) * size // len(devices)]
            loss = tf.reduce_mean(tf.square(weight - share))
            gradients += tf.gradients(loss, weight)
    with tf.device('/cpu:0'):
        return weight.assign_sub(rate * tf.add_n(gradients))
