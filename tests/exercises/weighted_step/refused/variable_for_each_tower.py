# refused: the graph has 2 trainable variables
import tensorflow.compat.v1 as tf


def weighted_step(devices, batch, rate):
    size = tf.shape(batch)[0]
    updates = []
    for k, device in enumerate(devices):
        with tf.device(device), tf.name_scope(f'tower_{k}'):
            weight = tf.Variable(0.0)
            share = batch[k * size // len(devices):(k + 1) * size // len(devices)]
            loss = tf.reduce_sum(tf.square(weight - share)) / tf.cast(size, tf.float32)
            updates.append(weight.assign_sub(rate * tf.gradients(loss, weight)[0]))
    return tf.group(updates)
