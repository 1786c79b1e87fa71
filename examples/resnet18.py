"""ResNet-18 in plain TensorFlow 1, with `tf.get_variable` and `tf.nn`, for multi_gpu_train.py:

    python multi_gpu_train.py --network=examples/resnet18.py:network --num_gpus=4

It follows He et al. 2015, "Deep Residual Learning for Image Recognition", table 1. Images of more than 64 pixels get
the stem of that table, which reduces height and width to a quarter; smaller images get a 3x3 convolution.
"""
import tensorflow.compat.v1 as tf

from cifar10.model import batch_normalisation

L2 = 1e-4
BLOCKS = 2  # number of blocks in each of the four stages
LARGE = 64  # images of more pixels get the stem for ImageNet


def network(images, num_classes, training, width=64):
    """Returns logits, float [n, num_classes], of images [n, height, width, 3]; the first stage has `width` channels."""
    x = stem(images, width, training)
    for stage in range(4):
        for block in range(BLOCKS):
            with tf.variable_scope(f'stage{stage + 1}/block{block + 1}'):
                x = residual_block(x, width * 2 ** stage, 2 if stage > 0 and block == 0 else 1, training)
    features = tf.reduce_mean(x, [1, 2])
    with tf.variable_scope('logits'):
        kernel = variable('kernel', [features.shape[-1], num_classes], features.dtype)
        bias = tf.get_variable('bias', [num_classes], initializer=tf.zeros_initializer())
        return features @ kernel + tf.cast(bias, features.dtype)


def narrow(images, num_classes, training):
    """Returns the logits of a network with an eighth of the channels, for experiments on a CPU."""
    return network(images, num_classes, training, width=8)


def stem(images, channels, training):
    """Returns the input of the first stage, [n, height, width, channels]; reduces large images."""
    if images.shape[1] is None or images.shape[1] <= LARGE:
        return tf.nn.relu(convolution('stem', images, channels, 3, 1, training))
    x = tf.nn.relu(convolution('stem', images, channels, 7, 2, training))
    return tf.nn.max_pool2d(x, 3, 2, 'SAME')


def residual_block(x, channels, stride, training):
    """Returns `x` plus the result of two convolutions; the first convolution has the stride."""
    y = tf.nn.relu(convolution('conv1', x, channels, 3, stride, training))
    y = convolution('conv2', y, channels, 3, 1, training)
    if x.shape[-1] != channels:
        x = convolution('shortcut', x, channels, 1, stride, training)
    return tf.nn.relu(x + y)


def convolution(name, x, channels, size, stride, training):
    """Applies a convolution with size x size filters and batch normalisation to `x`."""
    with tf.variable_scope(name):
        kernel = variable('kernel', [size, size, x.shape[-1], channels], x.dtype)
        return batch_normalisation(tf.nn.conv2d(x, kernel, stride, 'SAME'), training)


def variable(name, shape, dtype):
    """Returns the value of a variable, cast to the type of the images; adds its L2 loss."""
    # He et al. 2015, "Delving Deep into Rectifiers", equation 10.
    initializer = tf.initializers.variance_scaling(2.0, 'fan_out')
    value = tf.convert_to_tensor(tf.get_variable(name, shape, initializer=initializer))
    tf.add_to_collection(tf.GraphKeys.LOSSES, tf.multiply(L2, tf.nn.l2_loss(value), name='weight_loss'))
    return tf.cast(value, dtype)
