"""Augmentation of images: the interface, and the augmentation of the classic recipe.

Augmentations are pure functions of (seed, position), built as graph operations.
"""
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from cifar10.data import SIZE
from cifar10.data.draws import Positions, draws
from cifar10.data.resize import cut_boxes, mirrored


class Augmentation:
    """How images of the data set become the input of a network; this one changes nothing at random.

    Args:
      sizes, total_examples: as for `data.shift.Shift`, which alone uses them.
      seed: seed of all random choices.
      image_size: height and width in pixels of the images of the data.
      then: function (images, labels, num_classes) -> (images, labels), the user's own augmentation that follows in each
        tower, or None. Its images are those of `pixels`; labels are int32 [n], or float32 [n, num_classes].

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
        """Returns the box of each picture that becomes an image; None for the largest square in the centre.

        Args:
          shapes: int32 [n, 2], the heights and widths of the pictures in pixels.
          positions: where the training batch lies; None for evaluation.

        Returns:
          int32 [n, 4], the first row, first column, last row and last column. If the last column is left of the first,
          the box is mirrored.
        """
        del shapes, positions

    def pixels(self, images: tf.Tensor, positions: Positions) -> tf.Tensor:
        """Returns the images of a training batch: float32 [n, height, width, 3] from 0 to 255.

        Every random choice follows from the positions and the seed.

        Args:
          images: uint8 [n, image_size, image_size, 3].
        """
        del positions
        return tf.cast(images, tf.float32)

    def centre(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the images of a batch for evaluation, without random changes; shapes as in `pixels`."""
        return tf.cast(images, tf.float32)

    def normalise(self, pixels: tf.Tensor) -> tf.Tensor:
        """Returns the input of a network, given `pixels`, the result of the user's function on them, or `centre`."""
        # In the shape of an image, as in `augment`.
        mean, deviation = (tf.broadcast_to(each, tf.shape(pixels)[1:]) for each in (self.mean, self.deviation))
        return (pixels - mean) * (1 / deviation)

    def __call__(self, images: tf.Tensor, positions: Positions | None = None) -> tf.Tensor:
        """Returns a batch for `in_tower`, given images uint8 [n, image_size, image_size, 3].

        Without positions, returns the input of a network in evaluation.
        """
        if positions is None:
            return self.normalise(self.centre(images))
        pixels = self.pixels(images, positions)
        return pixels if self._then else self.normalise(pixels)

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
    """Returns the height and width of the crops of images: three quarters, as the tutorial's 24 of CIFAR's 32."""
    return image_size * 3 // 4


def augment(images: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Crops and mirrors images and changes their contrast, each by its own random numbers.

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
    # In the shape of a row: three values alone would be broadcast pixel by pixel, which takes twice the time.
    means = tf.tile(tf.reduce_mean(crops, [1, 2], keepdims=True), [1, 1, crop, 1])
    return (crops - means) * tf.reshape(0.2 + 1.6 * contrast, [-1, 1, 1, 1]) + means


def standardise(pixels: tf.Tensor) -> tf.Tensor:
    """Scales each image to mean 0 and variance 1, as `tf.image.per_image_standardization` does.

    As there, the standard deviation counts as at least 1/sqrt(number of elements), so a flat image stays
    finite. The tutorial also shifts the brightness before this. Standardising cancels a shift exactly.

    Args:
      pixels: float32 [n, height, width, 3].
    """
    elements = int(pixels.shape[1] * pixels.shape[2] * pixels.shape[3])
    # The order of a sum decides how it rounds, and so the bits of a run: all red, all green, all blue. Graph
    # optimisation would move a tf.transpose before a cast from bytes, which oneDNN cannot transpose on some CPUs.
    mean, variance = tf.nn.moments(tf.stack(tf.unstack(pixels, axis=-1), 1), [1, 2, 3])
    mean, scale = (tf.reshape(each, [-1, 1, 1, 1]) for each in (
        mean, tf.minimum(tf.rsqrt(variance), elements ** 0.5)))
    return (pixels - mean) * scale
