"""Local response normalisation as few wide operations, with its exact gradient.

`tf.nn.lrn` has a gradient that is a scalar loop on the CPU, and no bfloat16 there. Here the sum over
neighbouring channels is one product with a banded matrix, which is what CPUs and GPUs do best.
"""
import numpy as np
import tensorflow.compat.v1 as tf


def local_response_normalisation(x: tf.Tensor, depth_radius: int, alpha: float, name: str) -> tf.Tensor:
    """Computes y_c = x_c * s_c^-0.75, where s_c = 1 + alpha * sum of x_j^2 over |j - c| <= depth_radius.

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
