"""Networks for the tests of all features, with random numbers, several parts, or images of any size."""
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.base.registry import NETWORKS
from cifar10.model import NUM_CLASSES, Network, dropout, uniform_like
from cifar10.model.parts import next_part


def register():
    """Registers the network `three_parts` in this process, because only built-in networks can be divided."""
    NETWORKS['three_parts'] = 'tests.networks:THREE_PARTS'


def noisy(images, num_classes, training):
    """Draws random numbers for its images and for two layers."""
    x = tf.reshape(images, [-1, 24 * 24 * 3])
    if training:
        x += 0.1 * uniform_like(x)
    x = tf.nn.relu(dropout(x @ tf.get_variable('first', [24 * 24 * 3, 10]), 0.4, training))
    return dropout(x, 0.2, training) @ tf.get_variable(
        'last', [10, num_classes], initializer=tf.truncated_normal_initializer(stddev=0.1))


def stateless(images, num_classes, training):
    """Uses TensorFlow's stateless dropout with a seed for each step."""
    x = tf.nn.relu(tf.reshape(images, [-1, 24 * 24 * 3]) @ tf.get_variable('first', [24 * 24 * 3, 8]))
    if training:
        seed = [tf.get_default_graph().seed, tf.train.get_global_step()]
        x = tf2.nn.experimental.stateless_dropout(x, 0.5, seed=seed)
    return x @ tf.get_variable('last', [8, num_classes])


def three_parts(images, training=False, num_classes=NUM_CLASSES):
    """A network in three parts, with the arguments of `Network.inference`."""
    x = tf.reshape(images, [-1, 24 * 24 * 3]) @ tf.cast(tf.get_variable('first', [24 * 24 * 3, 16]), images.dtype)
    x = next_part(tf.nn.relu(next_part(x)))
    return tf.cast(x @ tf.cast(tf.get_variable('second', [16, num_classes]), images.dtype), tf.float32)


THREE_PARTS = Network(three_parts)


def convolutions(images, num_classes, training):
    """Takes images of any size."""
    x = images
    for i, channels in enumerate((8, num_classes)):
        x = tf.nn.conv2d(tf.nn.relu(x), tf.get_variable(f'weights{i}', [3, 3, x.shape[-1], channels]), 2, 'SAME')
    return tf.reduce_mean(x, [1, 2])


def tiny(images, num_classes, training):
    """Has 40 numbers, so that many checkpoints take little time."""
    weights = tf.get_variable('weights', [3, num_classes], initializer=tf.zeros_initializer())
    biases = tf.get_variable('biases', [num_classes], initializer=tf.zeros_initializer())
    return tf.cast(tf.reduce_mean(images, [1, 2]), tf.float32) @ weights + biases


def attention(images, num_classes, training):
    """Uses a large tensor three times, so that its gradient is a sum of three terms."""
    x = tf.nn.conv2d(images, tf.get_variable('conv', [3, 3, 3, 16]), 1, 'SAME')
    x = tf.reshape(x, [-1, x.shape[1] * x.shape[2], 16])
    x = tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x)
    return tf.reduce_mean(tf.nn.relu(x), 1) @ tf.get_variable('head', [16, num_classes])
