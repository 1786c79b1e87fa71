"""Building blocks of networks: variables, seeds, a 3x3 convolution, normalisations and dropout."""
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.model.network_draws import uniform_like
from cifar10.model.untrained_variables import add_moving_statistic, is_frozen

_MENDED = 'cifar10.Conv2D'  # the registered name of `_mended_gradient`
_SAFE_CHANNELS = 16  # minimum number of input channels for a correct gradient on every CPU
_SMALL = 6  # up to this image height, matrix products compute the gradient of filters faster


def read(name: str, shape: Sequence, initializer: Callable) -> tf.Tensor:
    """Returns the value of a variable in the current variable scope; creates the variable if it does not exist."""
    # One read for all uses, because each read of a variable on the CPU copies it to the tower's device.
    return tf.convert_to_tensor(tf.get_variable(name, shape, initializer=initializer))


def seed_of(name: str) -> tuple:
    """Returns the seed for a stateless random operation that initialises a variable in the current scope.

    The seed depends on the graph's seed and on the variable's name. So layers have different initial values, and other
    operations in the graph do not change them.
    """
    return tf.get_seed(zlib.crc32(f'{tf.get_variable_scope().name}/{name}'.encode()))


def add_l2_loss(value: tf.Tensor, factor: float) -> None:
    """Adds factor * sum(value^2) / 2 to the losses of the network."""
    tf.add_to_collection(tf.GraphKeys.LOSSES, tf.multiply(tf.nn.l2_loss(value), factor, name='weight_loss'))


def convolution(x: tf.Tensor, filters: tf.Tensor) -> tf.Tensor:
    """Convolves images with 3x3 filters, stride 1 and zero padding; its gradient is optimised for CPUs.

    oneDNN computes the gradient of the filters at half the speed of the forward convolution, or at a third if the
    images are a few pixels wide. For small images, nine matrix products take about half the time. Concurrent gradients
    of images and filters compete for memory; computing them one after the other makes the whole step 5% faster.

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
                dfilters = tf.cond(
                    tf.shape(x)[1] <= _SMALL, lambda: filter_gradient(x, dy),
                    lambda: tf.nn.conv2d_backprop_filter(x, filters.shape, dy, [1, 1, 1, 1], 'SAME'))
            return dx, dfilters
        return tf.nn.conv2d(x, filters, 1, 'SAME'), gradient
    return convolve(x, filters)


def mended_gradients() -> AbstractContextManager:
    """Returns a context in which `tf.nn.conv2d` has a gradient that is correct on CPUs.

    In TensorFlow 2.21, oneDNN's gradient of 1x1 filters with a stride writes out of bounds if the input has fewer
    channels than a register has numbers, 8 with AVX2 and 16 with AVX-512: the process crashes, or the gradient is
    wrong. This gradient first removes the pixels between the strides, which such filters do not see.
    """
    return tf.get_default_graph().gradient_override_map({'Conv2D': _MENDED})


@tf.RegisterGradient(_MENDED)
def _mended_gradient(operation, dy):
    x, filters = operation.inputs
    x_shape, filters_shape = tf.shape_n([x, filters])
    strides = operation.get_attr('strides')
    options = {name: operation.get_attr(name) for name in (
        'padding', 'explicit_paddings', 'use_cudnn_on_gpu', 'data_format', 'dilations')}
    dx = tf.raw_ops.Conv2DBackpropInput(
        input_sizes=x_shape, filter=filters, out_backprop=dy, strides=strides, **options)
    height, width, channels, _ = filters.shape.as_list()
    is_mended = height == width == 1 < max(strides) and (channels or _SAFE_CHANNELS) < _SAFE_CHANNELS
    if is_mended and options['padding'] != b'EXPLICIT':
        x, strides = x[tuple(slice(None, None, stride) for stride in strides)], [1, 1, 1, 1]
    dfilters = tf.raw_ops.Conv2DBackpropFilter(
        input=x, filter_sizes=filters_shape, out_backprop=dy, strides=strides, **options)
    return dx, dfilters


def filter_gradient(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """Returns the gradient of 3x3 filters: the products of dy with x, shifted to each filter position.

    Args:
      x: [n, height, width, in], the input of the convolution.
      dy: [n, height, width, out], the gradient of its output.

    Returns:
      [3, 3, in, out].
    """
    height, width = tf.shape(x)[1], tf.shape(x)[2]
    inputs, outputs = x.shape[-1], dy.shape[-1]
    padded = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
    flat_dy = tf.reshape(dy, [-1, outputs])
    products = []
    for row in range(3):
        for column in range(3):
            shifted = tf.reshape(padded[:, row:row + height, column:column + width], [-1, inputs])
            products.append(tf.matmul(shifted, flat_dy, transpose_a=True))
    return tf.reshape(tf.stack(products), [3, 3, inputs, outputs])


def local_response_normalisation(x: tf.Tensor, depth_radius: int, alpha: float, name: str) -> tf.Tensor:
    """Computes y_c = x_c * s_c^-0.75, where s_c = 1 + alpha * sum of x_j^2 over |j - c| <= depth_radius.

    This is `tf.nn.lrn` with bias 1 and beta 0.75 (Krizhevsky et al. 2012, section 3.3), whose gradient on CPUs is a
    scalar loop without support for bfloat16. Here the sum over neighbouring channels is a product with a banded matrix
    of ones, B, which CPUs and GPUs compute fast. The gradient is

        dx = dy * s^-0.75 - 2 * 0.75 * alpha * x * B(dy * y / s)

    Args:
      x: [n, height, width, channels]; float32, bfloat16 or float16. Sums are computed in float32.
      depth_radius: the number of neighbouring channels on each side.
      alpha: the weight of the sum of squares.
      name: name scope of the operations.

    Returns:
      A tensor of the shape and type of x.
    """
    channels = int(x.shape[-1])
    distances = np.abs(np.subtract.outer(np.arange(channels), np.arange(channels)))
    band = (distances <= depth_radius).astype(np.float32)

    @tf.custom_gradient
    def normalise(x):
        x32 = tf.cast(x, tf.float32)
        s = 1.0 + _mixed(x32 * x32, alpha * band)
        root = tf.rsqrt(s)
        scale = root * tf.sqrt(root)  # s^-0.75, faster than a power
        y = x32 * scale

        def gradient(dy):
            dy = tf.cast(dy, tf.float32)
            return tf.cast(dy * scale + x32 * _mixed(dy * (y / s), -1.5 * alpha * band), x.dtype)
        return tf.cast(y, x.dtype), gradient

    with tf.name_scope(name):
        return normalise(x)


def _mixed(x, matrix):
    """Multiplies the channels of x, [..., channels], by a matrix [channels, channels]."""
    flat = tf.reshape(x, [-1, len(matrix)])
    return tf.reshape(flat @ tf.constant(matrix, x.dtype), tf.shape(x))


def batch_normalisation(x: tf.Tensor, training: bool, momentum: float = 0.99, epsilon: float = 1e-3, scale: bool = True,
                        offset: bool = True) -> tf.Tensor:
    """Batch normalisation (Ioffe and Szegedy 2015), as `tf.layers.batch_normalization` of TensorFlow 1 computes it.

    In training, each tower normalises with the statistics of its own batch, and the update moves the moving mean and
    variance towards the mean statistics of the towers. Evaluation uses the moving statistics, and so does training if
    they are frozen. As in TensorFlow 1, the moving variance follows the unbiased variance of images, but the biased
    variance of other inputs, such as the output of a dense layer.

    The defaults and the names of the variables in the current scope (gamma, beta, moving_mean and moving_variance) are
    the same as in TensorFlow 1 and Keras, so ported networks behave as before. The moving statistics need some hundreds
    of updates to forget their initial values (0.99^500 = 0.7%). For shorter runs, choose a momentum of 0.9.

    Args:
      x: [n, ..., channels], images if it has four dimensions; float32, bfloat16 or float16. Statistics are computed in
        float32.
      training: whether to normalise with the statistics of the batch.
      momentum: the fraction of the moving mean and variance that an update keeps.
      epsilon: constant to add to the variance; 1e-5 or more.
      scale: whether to multiply by a variable for each channel, gamma.
      offset: whether to add a variable for each channel, beta.

    Returns:
      A tensor of the shape and type of x.
    """
    channels = [x.shape[-1]]
    gamma = read('gamma', channels, tf.ones_initializer()) if scale else tf.ones(channels)
    beta = read('beta', channels, tf.zeros_initializer()) if offset else tf.zeros(channels)
    return normalise_batch(x, training, gamma, beta, momentum, epsilon)


def normalise_batch(x: tf.Tensor, training: bool, scale: tf.Tensor, offset: tf.Tensor, keep: float,
                    epsilon: float) -> tf.Tensor:
    """Normalises like `batch_normalisation`, with a given scale and offset.

    Args:
      x, training, epsilon: as for `batch_normalisation`.
      scale, offset: float32 [channels].
      keep: fraction of the moving statistics that an update keeps.

    Returns:
      A tensor of the shape and type of x.
    """
    channels = x.shape[-1]
    moving_mean = tf.get_variable(
        'moving_mean', [channels], initializer=tf.zeros_initializer(), trainable=False)
    moving_variance = tf.get_variable(
        'moving_variance', [channels], initializer=tf.ones_initializer(), trainable=False)
    by_batch = training and not (is_frozen(moving_mean) and is_frozen(moving_variance))
    statistics = [] if by_batch else [moving_mean.read_value(), moving_variance.read_value()]
    images = x if x.shape.rank == 4 else tf.reshape(x, [-1, 1, 1, channels])
    y, mean, variance = tf.nn.fused_batch_norm(
        images, scale, offset, *statistics, epsilon=epsilon, is_training=by_batch)
    if by_batch:
        if x.shape.rank != 4:  # `tf.layers` uses the biased variance here, the fused kernel the unbiased variance
            n = tf.cast(tf.shape(images)[0], tf.float32)
            variance *= (n - 1) / n
        add_moving_statistic(moving_mean, mean, keep)
        add_moving_statistic(moving_variance, variance, keep)
    return y if x.shape.rank == 4 else tf.reshape(y, tf.shape(x))


def dropout(x: tf.Tensor, rate: float, training: bool) -> tf.Tensor:
    """Dropout (Srivastava et al. 2014): sets random values to 0 in training, and scales the remaining values.

    The random numbers come from `uniform_like`, so a resumed run ends with the same bits.

    Args:
      x: [n, ...], with a row for each image; float32, bfloat16 or float16.
      rate: the fraction of values to set to 0, at least 0 and less than 1. The remaining values are multiplied by
        1 / (1 - rate).
      training: if false, x is returned unchanged.

    Returns:
      A tensor of the shape and type of x.

    Raises:
      ValueError: the rate is out of range.
    """
    if not 0 <= rate < 1:
        raise ValueError(f'the dropout rate is {rate}; use a rate of at least 0 and less than 1')
    if not training:
        return x
    return tf.where_v2(uniform_like(x) >= rate, x * (1 / (1 - rate)), tf.zeros([], x.dtype))
