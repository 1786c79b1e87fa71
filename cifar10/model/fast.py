"""Networks that learn in few epochs: whitened patches, groups of two convolutions, batch normalisation.

The architecture follows cifar10-airbench (Keller Jordan 2024), with two changes: it uses ReLU, and it ends with a
maximum over all positions, so it accepts images of any size. `fast` has three groups; `photos` has four, because its
images are larger.
"""
import functools
import sys
from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.model import NUM_CLASSES, Network
from cifar10.model.layers import add_l2_loss, convolution, normalise_batch, read, seed_of
from cifar10.model.parts import next_part

_WIDTHS = (64, 128, 128)
_KEEP = 0.6  # the fraction of a moving statistic that an update keeps
_EPSILON = 1e-5  # of batch normalisation
_OFFSET_SCALE = 8.0  # makes plain gradient descent move the offsets 64 times as fast
_L2 = 1.33e-3
_LOGIT_SCALE = 1 / 9
_PATCH = 2  # height and width of the whitened patches
_WHITENING_EPSILON = 5e-4


def inference(images: tf.Tensor, training: bool = False, num_classes: int = NUM_CLASSES,
              widths: Sequence[int] = _WIDTHS, whitening: np.ndarray | None = None) -> tf.Tensor:
    """Builds the network in the current variable scope; each group of convolutions is a part.

    Args:
      images: [n, height, width, 3], of mean 0 and variance 1. The network computes in their type: float32,
        bfloat16 or float16. Variables, statistics and the last layer are always float32.
      training: whether batch normalisation uses the statistics of the batch.
      num_classes: number of logits of each image.
      widths: channels of each group.
      whitening: initial filters of the first layer, float32 [2, 2, 3, 24], from `whitening_filters`; None
        if they are restored from a checkpoint.

    Returns:
      Logits, float32 [n, num_classes].
    """
    x = _whiten(images, whitening)
    for i, width in enumerate(widths, 1):
        if i > 1:
            x = next_part(x)
        with tf.variable_scope(f'group{i}'):
            x = tf.nn.max_pool2d(_convolution('conv1', x, width), 2, 2, 'VALID')
            x = _activate(x, 'norm1', training)
            x = _activate(_convolution('conv2', x, width), 'norm2', training)
    features = tf.cast(tf.reduce_max(x, [1, 2]), tf.float32)
    with tf.variable_scope('head'):
        weights = read('weights', [features.shape[-1], num_classes], _uniform)
        add_l2_loss(weights, _L2)
        return features @ weights * _LOGIT_SCALE


def _whiten(images, filters):
    with tf.variable_scope('whiten'):
        shape = [_PATCH, _PATCH, 3, 2 * _PATCH * _PATCH * 3]  # each filter has its negative
        initial = tf.zeros_initializer() if filters is None else tf.constant_initializer(filters)
        weights = tf.convert_to_tensor(tf.get_variable('weights', shape, initializer=initial, trainable=False))
        return tf.nn.relu(tf.nn.conv2d(images, tf.cast(weights, images.dtype), 1, 'VALID'))


def _convolution(name, x, channels):
    with tf.variable_scope(name):
        weights = read('weights', [3, 3, x.shape[-1], channels], _identity_first)
        return convolution(x, tf.cast(weights, x.dtype))


def _activate(x, name, training):
    """Applies ReLU after batch normalisation without a scale; its offset has its own learning rate and L2 loss."""
    with tf.variable_scope(name):
        channels = [x.shape[-1]]
        offset = read('offset', channels, tf.zeros_initializer())
        y = normalise_batch(x, training, tf.ones(channels), _OFFSET_SCALE * offset, _KEEP, _EPSILON)
        if training:
            add_l2_loss(offset, _L2)
        y = tf.nn.relu(y)
        tf.add_to_collection(tf.GraphKeys.ACTIVATIONS, y)
        return y


def _uniform(shape, dtype=tf.float32, partition_info=None):
    """Initialises uniformly within +-1/sqrt(fan_in), PyTorch's default."""
    del partition_info
    bound = float(np.prod(shape[:-1], dtype=int)) ** -0.5
    return tf.random.stateless_uniform(shape, seed_of('weights'), -bound, bound, dtype)


def _identity_first(shape, dtype=tf.float32, partition_info=None):
    """Initialises the first filters to the identity, one input channel each, and the remaining filters uniformly."""
    height, width, inputs, outputs = shape
    copies = min(inputs, outputs)
    identity = np.zeros(shape, np.float32)
    identity[height // 2, width // 2, range(copies), range(copies)] = 1
    return tf.where_v2(tf.range(outputs) < copies, tf.constant(identity, dtype), _uniform(shape, dtype))


def whitening_filters(images: np.ndarray) -> np.ndarray:
    """Returns whitening filters, whose outputs on the images are uncorrelated with variance 1, and their negatives.

    The filters are the eigenvectors of the second moments of all 2x2 patches, divided by the square roots of their
    eigenvalues, as in the first layer of cifar10-airbench (Keller Jordan 2024), after Page's cifar10-fast.

    Args:
      images: float32 [n, height, width, channels], preprocessed as for the network.

    Returns:
      float32 [2, 2, channels, 2 * 4 * channels]: the filters, the largest eigenvalue first, then the negatives.
    """
    height, width, channels = images.shape[1:]
    patches = np.concatenate([images[:, row:height - _PATCH + 1 + row, column:width - _PATCH + 1 + column]
                              for row in range(_PATCH) for column in range(_PATCH)], -1)
    patches = patches.reshape(-1, _PATCH * _PATCH * channels)
    values, vectors = np.linalg.eigh((patches.T @ patches / len(patches)).astype(np.float64))
    filters = (vectors / np.sqrt(values + _WHITENING_EPSILON))[:, ::-1]  # the largest eigenvalue first
    filters = np.concatenate([filters, -filters], 1).astype(np.float32)
    return filters.reshape(_PATCH, _PATCH, channels, -1)


def _network(widths):
    smallest = 2 ** len(widths) + _PATCH - 1  # pooling in each group halves the images, and must leave a pixel
    return Network(functools.partial(inference, widths=widths), range(smallest, sys.maxsize),
                   learn=lambda images: dict(whitening=whitening_filters(images)))


FAST, PHOTOS = _network(_WIDTHS), _network((32, 64, 128, 256))
