"""A small residual network in plain graph code, for multi_gpu_train.py:

    python multi_gpu_train.py --network=examples/residual_network.py:residual --num_gpus=4

It has three stages of one block each, as in He et al. 2015, "Deep Residual Learning for Image Recognition",
section 4.2. All convolutions are batch-normalised. A mean over all positions and one linear layer follow.
"""
import tensorflow.compat.v1 as tf

from cifar10.model import batch_normalisation

STAGES = (16, 32, 64)  # channels
L2 = 1e-4


def residual(images, num_classes, training):
    """Returns the logits of images [n, height, width, 3], float [n, num_classes]."""
    x = convolution('first', images, STAGES[0], 1, training)
    for i, channels in enumerate(STAGES):
        stride = 1 if i == 0 else 2
        with tf.variable_scope(f'stage{i + 1}'):
            y = tf.nn.relu(convolution('conv1', tf.nn.relu(x), channels, stride, training))
            y = convolution('conv2', y, channels, 1, training)
            if stride > 1:
                x = convolution('shortcut', x, channels, stride, training, size=1)
            x = y + x
    features = tf.reduce_mean(tf.nn.relu(x), [1, 2])
    weights = variable('head', [features.shape[-1], num_classes], features.dtype)
    return features @ weights


def convolution(name, x, channels, stride, training, size=3):
    """Applies a convolution and batch normalisation to `x`."""
    with tf.variable_scope(name):
        filters = variable('weights', [size, size, x.shape[-1], channels], x.dtype)
        y = tf.nn.conv2d(x, filters, stride, 'SAME')
        return batch_normalisation(y, training, momentum=0.9)


def variable(name, shape, dtype):
    """Returns the value of a variable, cast to the type of the images; adds its L2 loss."""
    # He et al. 2015, "Delving Deep into Rectifiers", equation 10.
    initializer = tf.initializers.variance_scaling(2.0, 'fan_out')
    weights = tf.convert_to_tensor(tf.get_variable(name, shape, initializer=initializer))
    tf.add_to_collection(tf.GraphKeys.LOSSES, tf.multiply(L2, tf.nn.l2_loss(weights), name='weight_loss'))
    return tf.cast(weights, dtype)
