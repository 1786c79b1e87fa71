import tensorflow as tf


def weighted_mean(gradients, sizes):
    pairs = [(tf.constant(gradient), size) for gradient, size in zip(gradients, sizes) if size]
    return tf.add_n([gradient * size for gradient, size in pairs]) / sum(sizes)
