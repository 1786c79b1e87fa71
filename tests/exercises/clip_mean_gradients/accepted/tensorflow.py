import tensorflow as tf


def clip_mean_gradients(tower_gradients, limit):
    means = [tf.reduce_mean(tf.stack(gradients), 0) for gradients in zip(*tower_gradients)]
    return tf.clip_by_global_norm(means, tf.constant(limit, tf.float64))[0]
