"""Augmentation of images: the interface, and the augmentation of the classic recipe.

Augmentations are pure functions of (seed, position), built as graph operations.
"""
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from cifar10.data import SIZE
from cifar10.data.draws import Positions, draws
from cifar10.data.resize import cut_boxes, mirrored


class Augmentation:
    """Converts images of the data set to the input of a network. This base class makes no random changes.

    Args:
      sizes, total_examples: only for `data.shift.Shift`.
      seed: seed of all random choices.
      image_size: height and width in pixels of the images of the data set.
      then: function (images, labels, num_classes) -> (images, labels), a user's augmentation, which follows in each
        tower, or None. Its images come from `pixels`; labels are int32 [n], or float32 [n, num_classes].

    Attributes:
      test_time_averaging: whether evaluation by default averages the predictions for several views of an image.
      seen: the fraction of a picture's area that the network gets in evaluation.
      mean, deviation: statistics of red, green and blue, from 0 to 255, for normalisation: ImageNet's, as in
        torchvision.
    """
    test_time_averaging = False
    seen = 1.0
    mean, deviation = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)

    def __init__(self, sizes: Sequence[tuple[float, int]] | None = None, total_examples: int | None = None,
                 seed: int = 0, image_size: int = SIZE, then: Callable | None = None):
        del sizes, total_examples
        self._seed = seed
        self._image_size = image_size
        self._then = then

    def image_sizes(self) -> list[int]:
        """Returns the heights and widths in pixels of the network's input in the course of a run."""
        return [self._image_size]

    def flags_for(self, size: int) -> str:
        """Returns the flags for images of a size, for messages."""
        return f'--image_size={size}'

    def boxes(self, shapes: tf.Tensor, positions: Positions | None = None) -> tf.Tensor | None:
        """Returns the box to cut out of each picture; None for whole pictures.

        Args:
          shapes: int32 [n, 2], the heights and widths of the pictures in pixels.
          positions: the positions of the training batch; None for evaluation.

        Returns:
          int32 [n, 4], the first row, first column, last row and last column. If the last column is left of the first,
          the box is mirrored.
        """
        del shapes, positions
        return None

    def pixels(self, images: tf.Tensor, positions: Positions) -> tf.Tensor:
        """Returns the images of a training batch: float32 [n, height, width, 3] from 0 to 255.

        Every random choice is a function of the positions and the seed.

        Args:
          images: uint8 [n, image_size, image_size, 3].
        """
        del positions
        return tf.cast(images, tf.float32)

    def centre(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the images of a batch for evaluation, without random changes; shapes as in `pixels`."""
        return tf.cast(images, tf.float32)

    def normalise(self, pixels: tf.Tensor) -> tf.Tensor:
        """Returns the input of a network, given the images from `pixels`, `then` or `centre`."""
        # In the shape of an image, which is faster, as in `augment`.
        mean, deviation = (tf.broadcast_to(value, tf.shape(pixels)[1:]) for value in (self.mean, self.deviation))
        return (pixels - mean) * (1 / deviation)

    def __call__(self, images: tf.Tensor, positions: Positions | None = None) -> tf.Tensor:
        """Returns a batch for `in_tower`, or without positions the input of a network in evaluation.

        Args:
          images: uint8 [n, image_size, image_size, 3].
        """
        if positions is None:
            return self.normalise(self.centre(images))
        pixels = self.pixels(images, positions)
        return pixels if self._then else self.normalise(pixels)

    def in_tower(self, images: tf.Tensor, labels: tf.Tensor, num_classes: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the network's images and labels for training, given a tower's batch."""
        if self._then is None:
            return images, labels
        images, labels = self._then(images, labels, num_classes)
        return self.normalise(images), labels


class Classic(Augmentation):
    """The augmentation of the classic recipe: crop, mirror, contrast, standardisation."""
    seen = 9 / 16

    def image_sizes(self):
        return [crop_size(self._image_size)]

    def flags_for(self, size):
        return f'--image_size={-(-4 * size // 3)}'

    def pixels(self, images, positions):
        return augment(images, draws(positions.first, images.shape[0], self._seed))

    def centre(self, images):
        crop = crop_size(self._image_size)
        first = (self._image_size - crop) // 2
        last = first + crop
        return tf.cast(images[:, first:last, first:last], tf.float32)

    def normalise(self, pixels):
        return standardise(pixels)


def crop_size(image_size: int) -> int:
    """Returns the height and width of crops: three quarters of the image, as in the tutorial (24 of 32)."""
    return image_size * 3 // 4


def augment(images: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Crops and mirrors images and changes their contrast, each with its own random numbers.

    Args:
      images: uint8 [n, size, size, 3].
      numbers: float32 [n, 4] in [0, 1): row, column, mirror, contrast.

    Returns:
      float32 [n, crop, crop, 3], where `crop` is `crop_size(size)`; not standardised.
    """
    size = images.shape[1]
    crop = crop_size(size)
    row, column, mirror, contrast = tf.unstack(numbers, axis=1)
    first = tf.cast(tf.stack([row, column], 1) * (size - crop + 1), tf.int32)
    crops = cut_boxes(images, mirrored(first, first + crop - 1, mirror < 0.5), crop, 'nearest')
    # Tiled to the shape of a row: broadcasting three values pixel by pixel takes twice the time.
    means = tf.tile(tf.reduce_mean(crops, [1, 2], keepdims=True), [1, 1, crop, 1])
    return (crops - means) * tf.reshape(0.2 + 1.6 * contrast, [-1, 1, 1, 1]) + means


def standardise(pixels: tf.Tensor) -> tf.Tensor:
    """Scales each image to mean 0 and variance 1, as `tf.image.per_image_standardization` does.

    The standard deviation is at least 1/sqrt(number of elements), so a flat image stays finite. The tutorial also
    shifts the brightness first, but standardising cancels a shift exactly.

    Args:
      pixels: float32 [n, height, width, 3].
    """
    elements = int(pixels.shape[1] * pixels.shape[2] * pixels.shape[3])
    # The order of the sum (all red, all green, all blue) determines its rounding, and so the bits of a run. Graph
    # optimisation would move a tf.transpose before the cast from bytes, and oneDNN cannot transpose bytes on some CPUs.
    mean, variance = tf.nn.moments(tf.stack(tf.unstack(pixels, axis=-1), 1), [1, 2, 3])
    mean, scale = (tf.reshape(value, [-1, 1, 1, 1]) for value in (
        mean, tf.minimum(tf.rsqrt(variance), elements ** 0.5)))
    return (pixels - mean) * scale
