"""Augmentation of images: crop, mirror, contrast, standardisation, as pure functions of random numbers in the graph."""
import tensorflow.compat.v1 as tf

from cifar10.data.records import SIZE

IMAGE_SIZE = 24  # height and width of the crops that the network sees

_PHILOX = 1  # tf.random.Algorithm.PHILOX, as the raw operation wants it


def draws(first_position: tf.Tensor, n: int, seed: int) -> tf.Tensor:
    """Returns float32 [n, 4] uniform in [0, 1): four random numbers of each position.

    One call of the counter-based generator Philox gives 128 bits; the position is its counter, so
    the numbers of a position are the same in whatever batch it lies.
    """
    counter = tf.stack([tf.cast(first_position, tf.uint64), tf.constant(0, tf.uint64)])
    return tf.raw_ops.StatelessRandomUniformV2(
        shape=[n, 4], key=tf.constant([seed], tf.uint64), counter=counter, alg=_PHILOX)


def augment(planes: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Crops and mirrors images and changes their contrast, each by its own random numbers.

    Args:
      planes: uint8 [n, 3, 32, 32].
      numbers: float32 [n, 4] in [0, 1): row, column, mirror, contrast.

    Returns:
      float32 [n, 3, 24, 24], not standardised.
    """
    corners = tf.floor(numbers[:, :2] * (SIZE - IMAGE_SIZE + 1))
    first, last = corners / (SIZE - 1), (corners + (IMAGE_SIZE - 1)) / (SIZE - 1)
    left, right = first[:, 1], last[:, 1]
    mirror = numbers[:, 2] < 0.5
    boxes = tf.stack([first[:, 0], tf.where(mirror, right, left), last[:, 0], tf.where(mirror, left, right)], 1)
    # One operation crops, mirrors (a box from right to left) and converts. Its sampling points are
    # pixels up to rounding, and `nearest` makes them exact. Every plane is an image of its own to it.
    crops = tf.image.crop_and_resize(tf.reshape(planes, [-1, SIZE, SIZE, 1]), tf.repeat(boxes, 3, 0),
                                     tf.range(3 * planes.shape[0]), [IMAGE_SIZE, IMAGE_SIZE], method='nearest')
    crops = tf.reshape(crops, [-1, 3, IMAGE_SIZE, IMAGE_SIZE])
    means = tf.reduce_mean(crops, [2, 3], keepdims=True)
    return (crops - means) * (0.2 + 1.6 * numbers[:, 3])[:, None, None, None] + means


def standardise(planes: tf.Tensor) -> tf.Tensor:
    """Scales each image to mean 0 and variance 1.

    The classic recipe also shifts the brightness before this. Standardising cancels a shift exactly,
    so it is left out.

    Args:
      planes: float32 [n, 3, height, width].

    Returns:
      float32 [n, height, width, 3]; the standard deviation counts as at least 1/sqrt(number of
      elements), as in `tf.image.per_image_standardization`.
    """
    elements = int(planes.shape[1] * planes.shape[2] * planes.shape[3])
    mean, variance = tf.nn.moments(planes, [1, 2, 3], keepdims=True)
    return tf.transpose((planes - mean) * tf.minimum(tf.rsqrt(variance), elements ** 0.5), [0, 2, 3, 1])
