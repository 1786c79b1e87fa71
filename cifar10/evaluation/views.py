"""Averages the predictions for several views of an image at test time."""
import tensorflow.compat.v1 as tf

# The views, as shifts in pixels, and their weights: the unshifted view weighs as much as both shifted views together
# (cifar10-airbench, section 3.5).
_SHIFTS = ((0, 0), (-1, -1), (1, 1))
_WEIGHTS = (0.5, 0.25, 0.25)


def views(images: tf.Tensor) -> tf.Tensor:
    """Returns six views of each image, a batch [6 n, height, width, 3] that begins with the images themselves.

    The views of an image [height, width, 3] are the image, the image shifted by a pixel towards two corners, and the
    mirror images of these three.
    """
    height, width = images.shape[1:3]
    padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]], 'REFLECT')
    shifted = tf.concat([padded[:, 1 + row:1 + row + height, 1 + column:1 + column + width]
                         for row, column in _SHIFTS], 0)
    return tf.concat([shifted, tf.reverse(shifted, [2])], 0)


def average(logits: tf.Tensor) -> tf.Tensor:
    """Returns the weighted averages [n, classes] of logits float32 [6 n, classes], in the order of `views`."""
    weights = tf.constant(_WEIGHTS)[None, :, None, None] / 2
    return tf.reduce_sum(tf.reshape(logits, [2, len(_SHIFTS), -1, logits.shape[-1]]) * weights, [0, 1])
