"""Per-example losses in the style of users' code; `test_own_loss.py` has the expected results."""
import tensorflow.compat.v1 as tf


def cross_entropy(logits, labels):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def focal(logits, labels):
    right = tf.reduce_sum(tf.nn.softmax(logits) * tf.one_hot(labels, logits.shape[1]), 1)
    return -tf.square(1 - right) * tf.math.log(right)


def hinge(logits, labels):
    signs = 2 * tf.one_hot(labels, logits.shape[1]) - 1
    return tf.reduce_sum(tf.nn.relu(1 - signs * logits), 1)


def with_a_weight(logits, labels):
    scale = tf.get_variable('scale', [], initializer=tf.ones_initializer(), regularizer=tf.nn.l2_loss)
    return cross_entropy(scale * logits, labels)


def with_centers(logits, labels):
    centers = tf.get_variable('centers', [10, 10], initializer=tf.zeros_initializer(), trainable=False)
    mine = tf.gather(centers, labels)
    change = tf.math.unsorted_segment_sum(0.5 * (mine - logits), labels, 10) / tf.cast(tf.size(labels), tf.float32)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_sub(centers, change))
    return cross_entropy(logits, labels) + 0.01 * tf.reduce_sum(tf.square(logits - mine), 1)


def mean(logits, labels):
    return tf.reduce_mean(cross_entropy(logits, labels))


def of_each_class(logits, labels):
    return tf.nn.softmax_cross_entropy_with_logits_v2(labels=tf.one_hot(labels, 10), logits=logits)[:, None]


def nothing(logits, labels):
    cross_entropy(logits, labels)


def constant(logits, labels):
    return tf.cast(labels, tf.float32)


def relative(logits, labels):
    return cross_entropy(logits - tf.reduce_mean(logits, 0), labels)


def with_class_weights(logits, labels):
    return tf.gather(tf.linspace(0.1, 1.9, 10), labels) * cross_entropy(logits, labels)


def smoothed(logits, labels):
    targets = 0.9 * tf.one_hot(labels, 10) + 0.01
    return tf.nn.softmax_cross_entropy_with_logits_v2(labels=targets, logits=logits)


def above_a_margin(logits, labels):
    losses = cross_entropy(logits, labels)
    return tf.where(losses > 0.5, losses, tf.zeros_like(losses))


def with_noise(logits, labels):
    return cross_entropy(logits + tf.random.normal(tf.shape(logits)), labels)


def weighted_by_those_of_the_batch(logits, labels):
    weights = tf.gather(tf.linspace(0.1, 1.9, 10), labels)
    return weights / tf.reduce_mean(weights) * cross_entropy(logits, labels)


def ranked(logits, labels):
    return cross_entropy(logits, labels) / (1 + tf.cast(tf.argsort(tf.argsort(labels)), tf.float32))


def of_tf_losses(logits, labels):
    return tf.losses.sparse_softmax_cross_entropy(labels, logits, reduction=tf.losses.Reduction.NONE)


def in_an_absolute_scope(logits, labels):
    with tf.name_scope(None):
        tf.losses.add_loss(tf.reduce_mean(tf.square(logits), name='activity'))
    return cross_entropy(logits, labels)


def of_a_placeholder(logits, labels):
    return cross_entropy(logits * tf.placeholder(tf.float32, []), labels)


def misspelt(logits, labels):
    return tf.nn.sparse_softmax(logits, labels)
