import tensorflow as tf


def all_gather(num_devices):
    return tf.math.floormod(tf.range(num_devices - 1)[:, None] + tf.range(num_devices), num_devices)
