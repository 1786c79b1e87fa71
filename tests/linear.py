"""A small network of one's own for tests that are not about the network: runs start in half the time."""
import tensorflow.compat.v1 as tf


def network(images, num_classes, training):
    """Returns logits, a linear function of the means of 4 x 4 parts of the images."""
    side = images.shape[1] // 4
    parts = tf.nn.avg_pool2d(images, side, side, 'VALID')[:, :4, :4]
    weights = tf.get_variable('linear/weights', [4 * 4 * 3, num_classes], initializer=tf.zeros_initializer())
    biases = tf.get_variable('linear/biases', [num_classes], initializer=tf.zeros_initializer())
    return tf.reshape(parts, [-1, 4 * 4 * 3]) @ weights + biases


def scaled(images, num_classes, training):
    """Returns the logits of `network`, multiplied by a constant and by a variable."""
    gain = tf.get_variable('gain', [], initializer=tf.ones_initializer())
    return 0.1 * network(images, num_classes, training) * gain
