"""A 3x3 convolution whose gradient is computed in the order and the form that CPUs are fastest in.

oneDNN computes the gradient of the filters at half the rate of the forward convolution, and at a third where images are
a few pixels wide. There, nine products of matrices take about half the time. And where both gradients may run at once,
each waits for memory that the other has taken: one after the other is 5% faster for the whole step.
"""
import tensorflow.compat.v1 as tf

_SMALL = 6  # up to this height, products of matrices are faster


def convolution(x: tf.Tensor, filters: tf.Tensor) -> tf.Tensor:
    """Convolves images with 3x3 filters, with stride 1 and zeros around.

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
