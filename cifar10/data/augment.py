"""Augmentation of images: the interface, and the augmentation of the classic recipe.

Augmentations are pure functions of (seed, position), built as graph operations.
"""
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from cifar10.data import SIZE
from cifar10.data.draws import Positions, draws
from cifar10.data.resize import AS_THEY_ARE, cut_planes, mirrored, normalised


class Augmentation:
    """How images of the data set become the input of a network; this one changes nothing at random.

    Args:
      sizes, total_examples: as for `data.shift.Shift`, which alone uses them.
      seed: seed of all random choices.
      image_size: height and width in pixels of the images of the data.
      then: function (images, labels, num_classes) -> (images, labels), the user's own augmentation that follows in each
        tower, or None. Its images are what `pixels` returns; labels are int32 [n], or float32 [n, num_classes].

    Attributes:
      test_time_averaging: whether evaluation averages the predictions for several views of an image, unless
        the user says otherwise.
      mean, deviation: of red, green and blue, from 0 to 255, by which images are normalised: ImageNet's, as torchvision
        has them.
    """
    test_time_averaging = False
    mean, deviation = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)

    def __init__(self, sizes: Sequence[tuple[float, int]] | None = None, total_examples: int | None = None,
                 seed: int = 0, image_size: int = SIZE, then: Callable | None = None):
        del sizes, total_examples
        self._seed = seed
        self._image_size = image_size
        self._then = then

    def image_sizes(self) -> list[int]:
        """Returns the sizes (height and width in pixels) that images have in the course of a run."""
        return [self._image_size]

    def flags_for(self, size: int) -> str:
        """Returns the flags with which images would have a size, for messages."""
        return f'--image_size={size}'

    def boxes(self, shapes: tf.Tensor, positions: Positions | None = None) -> tf.Tensor | None:
        """Returns which part of each picture becomes an image; None for the largest square in the centre.

        Args:
          shapes: int32 [n, 2], the heights and widths of the pictures in pixels.
          positions: where the training batch lies; None for evaluation.

        Returns:
          int32 [n, 4], the first row, first column, last row and last column. If the last column is left of the first,
          the part is mirrored.
        """
        del shapes, positions

    def train(self, planes: tf.Tensor, positions: Positions) -> tf.Tensor:
        """Returns a training batch, float32 [n, height, width, 3], given planes uint8 [n, 3, image_size, image_size].

        Every random choice follows from the positions and the seed.
        """
        del positions
        return self.plain(planes)

    def plain(self, planes: tf.Tensor) -> tf.Tensor:
        """Returns a batch for evaluation, without random changes; shapes as in `train`."""
        return normalised(planes, self.mean, self.deviation)

    def pixels(self, planes: tf.Tensor, positions: Positions) -> tf.Tensor:
        """Returns what `train` does before it is normalised: float32 [n, height, width, 3] from 0 to 255."""
        del positions
        return normalised(planes, *AS_THEY_ARE)

    def normalise(self, pixels: tf.Tensor) -> tf.Tensor:
        """Returns a training batch, given `pixels`, or what a user's own augmentation makes of them."""
        return (pixels - tf.constant(self.mean)) / tf.constant(self.deviation)

    def __call__(self, planes: tf.Tensor, positions: Positions | None) -> tf.Tensor:
        """Returns the images of a batch at positions, as `in_tower` takes them; without positions, `plain`."""
        if positions is None:
            return self.plain(planes)
        return self.pixels(planes, positions) if self._then else self.train(planes, positions)

    def in_tower(self, images: tf.Tensor, labels: tf.Tensor, num_classes: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the images and labels of a training batch as a network is fed them, given those that a tower gets."""
        if self._then is None:
            return images, labels
        images, labels = self._then(images, labels, num_classes)
        return self.normalise(images), labels


class Classic(Augmentation):
    """The augmentation of the classic recipe: crop, mirror, contrast, standardisation."""

    def image_sizes(self):
        return [crop_size(self._image_size)]

    def flags_for(self, size):
        return f'--image_size={-(-4 * size // 3)}'

    def train(self, planes, positions):
        return standardise(self._cut(planes, positions))

    def pixels(self, planes, positions):
        return tf.transpose(self._cut(planes, positions), [0, 2, 3, 1])

    def normalise(self, pixels):
        return tf.image.per_image_standardization(pixels)

    def _cut(self, planes, positions):
        return augment(planes, draws(positions.first, planes.shape[0], self._seed))

    def plain(self, planes):
        crop = crop_size(self._image_size)
        first = (planes.shape[-1] - crop) // 2
        last = first + crop
        return standardise(tf.cast(planes[:, :, first:last, first:last], tf.float32))


def crop_size(image_size: int) -> int:
    """Returns the height and width of the crops of images: three quarters, as the tutorial's 24 of CIFAR's 32."""
    return image_size * 3 // 4


def augment(planes: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Crops and mirrors images and changes their contrast, each by its own random numbers.

    Args:
      planes: uint8 [n, 3, size, size].
      numbers: float32 [n, 4] in [0, 1): row, column, mirror, contrast.

    Returns:
      float32 [n, 3, crop, crop], where `crop` is `crop_size(size)`; not standardised.
    """
    size = planes.shape[-1]
    crop = crop_size(size)
    row, column, mirror, contrast = tf.unstack(numbers, axis=1)
    first = tf.cast(tf.stack([row, column], 1) * (size - crop + 1), tf.int32)
    crops = cut_planes(planes, mirrored(first, first + crop - 1, mirror < 0.5), crop, 'nearest')
    means = tf.reduce_mean(crops, [2, 3], keepdims=True)
    return (crops - means) * tf.reshape(0.2 + 1.6 * contrast, [-1, 1, 1, 1]) + means


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
