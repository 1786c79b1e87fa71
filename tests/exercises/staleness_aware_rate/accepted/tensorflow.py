import tensorflow.compat.v1 as tf


@tf.function
def staleness_aware_rate(rate, started, applied):
    return tf.constant(rate) / tf.cast(tf.maximum(1, applied - started), tf.float32)
