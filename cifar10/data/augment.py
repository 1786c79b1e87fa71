"""Augmentation of images: the interface, and the augmentation of the classic recipe.

Augmentations are pure functions of (seed, position), built as graph operations.
"""
import tensorflow.compat.v1 as tf

from cifar10.data.draws import Positions, draws
from cifar10.data.records import SIZE

IMAGE_SIZE = 24  # height and width of the crops that the classic network takes


class Augmentation:
    """How images of the data set become the input of a network.

    Attributes:
      test_time_averaging: whether evaluation averages the predictions for several views of an image, unless
        the user says otherwise.
    """
    test_time_averaging = False

    def image_sizes(self) -> list[int]:
        """Returns the sizes (height and width in pixels) that images have in the course of a run."""
        raise NotImplementedError

    def train(self, planes: tf.Tensor, positions: Positions) -> tf.Tensor:
        """Returns a training batch, float32 [n, height, width, 3].

        Args:
          planes: uint8 [n, 3, 32, 32].
          positions: where the batch lies; every random choice follows from this and the seed.
        """
        raise NotImplementedError

    def plain(self, planes: tf.Tensor) -> tf.Tensor:
        """Returns a batch for evaluation, without random changes; shapes as in `train`."""
        raise NotImplementedError


class Classic(Augmentation):
    """The augmentation of the classic recipe: crop, mirror, contrast, standardisation.

    It takes the same arguments as `Shift`, but uses only the seed.
    """

    def __init__(self, sizes: None, total_examples: int | None, seed: int):
        del sizes, total_examples
        self._seed = seed

    def image_sizes(self):
        return [IMAGE_SIZE]

    def train(self, planes, positions):
        numbers = draws(positions.first, planes.shape[0], self._seed)
        return standardise(augment(planes, numbers))

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
    # In the units of `crop_and_resize`, the last row and column are at 1.
    first = corners / (SIZE - 1)
    last = (corners + (IMAGE_SIZE - 1)) / (SIZE - 1)
    left = first[:, 1]
    right = last[:, 1]
    mirror = numbers[:, 2] < 0.5
    boxes = tf.stack([first[:, 0], tf.where(mirror, right, left), last[:, 0], tf.where(mirror, left, right)], 1)
    # One operation crops, mirrors (a box from right to left) and converts to float. Its sampling points are
    # pixels up to rounding, and `nearest` makes them exact. It is given each plane as an image with one
    # channel.
    crops = tf.image.crop_and_resize(tf.reshape(planes, [-1, SIZE, SIZE, 1]), tf.repeat(boxes, 3, 0),
                                     tf.range(3 * planes.shape[0]), [IMAGE_SIZE, IMAGE_SIZE], method='nearest')
    crops = tf.reshape(crops, [-1, 3, IMAGE_SIZE, IMAGE_SIZE])
    means = tf.reduce_mean(crops, [2, 3], keepdims=True)
    return (crops - means) * (0.2 + 1.6 * numbers[:, 3])[:, None, None, None] + means


def standardise(planes: tf.Tensor) -> tf.Tensor:
    """Scales each image to mean 0 and variance 1, as `tf.image.per_image_standardization` does.

    As there, the standard deviation counts as at least 1/sqrt(number of elements), so a flat image stays
    finite. The classic recipe also shifts the brightness before this. Standardising cancels a shift exactly,
    so it is left out.

    Args:
      planes: float32 [n, 3, height, width].

    Returns:
      float32 [n, height, width, 3].
    """
    elements = int(planes.shape[1] * planes.shape[2] * planes.shape[3])
    mean, variance = tf.nn.moments(planes, [1, 2, 3], keepdims=True)
    return tf.transpose((planes - mean) * tf.minimum(tf.rsqrt(variance), elements ** 0.5), [0, 2, 3, 1])
