import tensorflow.compat.v1 as tf


def clip_mean_gradients(tower_gradients, limit):
    with tf.Graph().as_default(), tf.Session() as session:
        means = [tf.reduce_mean(tf.stack(gradients), 0) for gradients in zip(*tower_gradients)]
        return session.run(tf.clip_by_global_norm(means, limit)[0])
