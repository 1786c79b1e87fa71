import tensorflow.compat.v1 as tf


def weighted_step(devices, batch, rate):
    with tf.device('/cpu:0'):
        weight = tf.get_variable('weight', initializer=0.0)
        size = tf.shape(batch)[0]
        more = tf.cast(tf.range(len(devices)) < size % len(devices), tf.int32)
        shares = tf.split(batch, size // len(devices) + more)
    gradients = []
    for device, share in zip(devices, shares):
        with tf.device(device):
            loss = tf.reduce_sum(tf.square(weight - share)) / tf.cast(size, tf.float32)
            gradients += tf.gradients(loss, weight)
    with tf.device('/cpu:0'):
        return weight.assign_sub(rate * tf.add_n(gradients))
