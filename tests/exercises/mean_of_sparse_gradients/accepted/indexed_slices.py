import tensorflow as tf


def mean_of_sparse_gradients(gradients):
    values, indices = (tf.concat([pair[i] for pair in gradients], 0) for i in range(2))
    return tf.IndexedSlices(values / len(gradients), indices)
