"""The layers that networks share: variables, a 3x3 convolution, and two normalisations.

They know no network, no tower and no update mode.
"""
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.networks import add_moving_statistic

_SMALL = 6  # up to this height, products of matrices are faster
_EPSILON = 1e-5  # of batch normalisation


def read(name: str, shape: Sequence, initializer: Callable) -> tf.Tensor:
    """Makes a variable in the current scope, or gets the one that is there; returns its value, for all uses."""
    # Read once: each read of a variable on the CPU is a copy to the tower's device.
    return tf.convert_to_tensor(tf.get_variable(name, shape, initializer=initializer))


def seed_of(name: str) -> tuple:
    """Returns the seed of a variable in the current scope, for a stateless random operation.

    Drawn so, another operation elsewhere in the graph changes nothing, and a network's layers differ though they
    share the graph's seed.
    """
    return tf.get_seed(zlib.crc32(f'{tf.get_variable_scope().name}/{name}'.encode()))


def convolution(x: tf.Tensor, filters: tf.Tensor) -> tf.Tensor:
    """Convolves images with 3x3 filters, with stride 1 and zeros around; its gradient is made for CPUs.

    oneDNN computes the gradient of the filters at half the rate of the forward convolution, and at a third where images
    are a few pixels wide. There, nine products of matrices take about half the time. And where both gradients may run
    at once, each waits for memory that the other has taken: one after the other is 5% faster for the whole step.

    Args:
      x: [n, height, width, in].
      filters: [3, 3, in, out], of the type of x.

    Returns:
      [n, height, width, out].
    """
    @tf.custom_gradient
    def convolve(x, filters):
        def gradient(dy):
            dx = tf.nn.conv2d_backprop_input(tf.shape(x), filters, dy, [1, 1, 1, 1], 'SAME')
            with tf.control_dependencies([dx]):
                dfilters = tf.cond(tf.shape(x)[1] <= _SMALL, lambda: filter_gradient(x, dy),
                                   lambda: tf.nn.conv2d_backprop_filter(x, filters.shape, dy, [1, 1, 1, 1], 'SAME'))
            return dx, dfilters
        return tf.nn.conv2d(x, filters, 1, 'SAME'), gradient
    return convolve(x, filters)


def filter_gradient(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """Returns the gradient of the filters as nine products: of x, shifted by each filter position, and dy.

    Args:
      x: [n, height, width, in].
      dy: [n, height, width, out], the gradient of the convolution.

    Returns:
      [3, 3, in, out].
    """
    height, width = tf.shape(x)[1], tf.shape(x)[2]
    inputs, outputs = x.shape[-1], dy.shape[-1]
    padded, flat = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), tf.reshape(dy, [-1, outputs])
    products = [tf.matmul(tf.reshape(padded[:, row:row + height, column:column + width], [-1, inputs]), flat,
                          transpose_a=True) for row in range(3) for column in range(3)]
    return tf.reshape(tf.stack(products), [3, 3, inputs, outputs])


def local_response_normalisation(x: tf.Tensor, depth_radius: int, alpha: float, name: str) -> tf.Tensor:
    """Computes y_c = x_c * s_c^-0.75, where s_c = 1 + alpha * sum of x_j^2 over |j - c| <= depth_radius.

    `tf.nn.lrn` has a gradient that is a scalar loop on the CPU, and no bfloat16 there. Here the sum over neighbouring
    channels is one product with a banded matrix, which is what CPUs and GPUs do best.

    The function of `tf.nn.lrn` with bias 1 and beta 0.75 (Krizhevsky et al. 2012, section 3.3). With
    B the band of ones, the gradient is dx = dy * s^-0.75 - 2 * 0.75 * alpha * x * B(dy * y / s).

    Args:
      x: [n, height, width, channels] of float32, or of bfloat16 or float16, of which sums are still float32.
      depth_radius: int.
      alpha: float.
      name: of the operations' scope.

    Returns:
      A tensor of the shape and type of x.
    """
    channels = int(x.shape[-1])
    distances = np.abs(np.subtract.outer(np.arange(channels), np.arange(channels)))
    band = (distances <= depth_radius).astype(np.float32)

    def summed(squares, factor):
        """Returns factor * B(squares), float32."""
        flat = tf.reshape(squares, [-1, channels])
        return tf.reshape(flat @ tf.constant(factor * band, squares.dtype), tf.shape(squares))

    @tf.custom_gradient
    def normalise(x):
        wide = tf.cast(x, tf.float32)
        s = 1.0 + summed(wide * wide, alpha)
        root = tf.rsqrt(s)
        scale = root * tf.sqrt(root)  # s^-0.75, for less than a power costs
        y = wide * scale

        def gradient(dy):
            dy = tf.cast(dy, tf.float32)
            return tf.cast(dy * scale + wide * summed(dy * (y / s), -1.5 * alpha), x.dtype)
        return tf.cast(y, x.dtype), gradient

    with tf.name_scope(name):
        return normalise(x)


def batch_normalisation(x: tf.Tensor, training: bool, keep: float, offset_scale: float, l2: float) -> tf.Tensor:
    """Normalises each channel by its mean and variance over the batch, or over the training; without a scale.

    Ioffe and Szegedy 2015. A training batch's mean and variance move the moving ones when the update is applied: with
    several towers, each normalises with its own batch.

    Args:
      x: [n, height, width, channels]; float32, or bfloat16 or float16, of which statistics are still float32.
      training: whether to normalise with the batch's statistics.
      keep: fraction of the moving statistics that an update keeps.
      offset_scale: the offset is this times its variable, so that plain gradient descent moves it by the square of
        this times its learning rate.
      l2: factor of the offset variable's L2 loss.

    Returns:
      A tensor of the shape and type of x.
    """
    channels = x.shape[-1]
    offset = tf.convert_to_tensor(tf.get_variable('offset', [channels], initializer=tf.zeros_initializer()))
    moving = [tf.get_variable(name, [channels], initializer=initializer(), trainable=False)
              for name, initializer in (('moving_mean', tf.zeros_initializer),
                                        ('moving_variance', tf.ones_initializer))]
    statistics = [] if training else [variable.read_value() for variable in moving]
    y, *batch = tf.nn.fused_batch_norm(
        x, tf.ones([channels]), offset_scale * offset, *statistics, epsilon=_EPSILON,
        is_training=training)
    if training:
        tf.add_to_collection(tf.GraphKeys.LOSSES, tf.multiply(tf.nn.l2_loss(offset), l2, name='weight_loss'))
        for variable, value in zip(moving, batch):
            add_moving_statistic(variable, value, keep)
    return y
