"""Augmentation of images as pure functions of (seed, position) in the graph, and the classic recipe's.

The classic one: crop, mirror, contrast, standardisation.
"""
import tensorflow.compat.v1 as tf

from cifar10.data.draws import Positions, draws
from cifar10.data.records import SIZE

IMAGE_SIZE = 24  # height and width of the crops that the classic network sees


class Augmentation:
    """How images of the data set become what a network sees.

    Attributes:
      test_time_averaging: whether a network so trained is evaluated on several views of an image, too.
    """
    test_time_averaging = False

    def image_sizes(self) -> list[int]:
        """Returns every height and width that the images have."""
        raise NotImplementedError

    def train(self, planes: tf.Tensor, positions: Positions) -> tf.Tensor:
        """Returns a training batch, float32 [n, height, width, 3].

        Args:
          planes: uint8 [n, 3, 32, 32].
          positions: their Positions; all that is random follows from them and the seed.
        """
        raise NotImplementedError

    def plain(self, planes: tf.Tensor) -> tf.Tensor:
        """Returns images for evaluation, nothing random in them; as `train`."""
        raise NotImplementedError


class Classic(Augmentation):
    """The classic recipe's; arguments as `Shift` has them."""

    def __init__(self, sizes: None, total_examples: int | None, seed: int):
        del sizes, total_examples
        self._seed = seed

    def image_sizes(self):
        return [IMAGE_SIZE]

    def train(self, planes, positions):
        return standardise(augment(planes, draws(positions.first, planes.shape[0], self._seed)))

    def plain(self, planes):
        edge = (SIZE - IMAGE_SIZE) // 2
        return standardise(tf.cast(planes[:, :, edge:-edge, edge:-edge], tf.float32))


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
