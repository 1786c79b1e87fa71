"""Augmentation of the fast recipe: shifts by up to two pixels, alternate mirroring, and growing images."""
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from cifar10.data import SIZE
from cifar10.data.augment import Augmentation
from cifar10.data.draws import draws, permuted

_SMALL = 28  # images of fewer pixels are shifted by at most one pixel


class Shift(Augmentation):
    """Resizes images to a size that grows with the run, shifts them at random and mirrors them alternately.

    A random half of the images is mirrored in the first epoch, the other half in the second, and so on, so two epochs
    see both sides of every image (cifar10-airbench, section 3.6). Small images cost less, and are as useful at the
    beginning of a run.

    Args:
      sizes: (start as a fraction of the run, height and width in pixels) of each size, in ascending order; the first
        fraction is 0. None: all images have the size of the data set.
      total_examples: number of examples in the whole run; may be None if there is only one size.
      seed, image_size, then: as for any Augmentation.
    """
    test_time_averaging = True
    mean, deviation = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)  # CIFAR-10's

    def __init__(self, sizes: Sequence[tuple[float, int]] | None, total_examples: int | None, seed: int,
                 image_size: int = SIZE, then: Callable | None = None):
        super().__init__(seed=seed, image_size=image_size, then=then)
        self._sizes = sizes or [(0.0, image_size)]
        self._total_examples = total_examples

    def image_sizes(self):
        return [size for _, size in self._sizes]

    def flags_for(self, size):
        return f'--sizes={size}' if size <= self._image_size else f'--image_size={size} --sizes={size}'

    def pixels(self, images, positions):
        size = self._size(positions.step)
        numbers = draws(positions.first, images.shape[0], self._seed)
        # The halves are the same in every epoch, and alternate by the epoch number.
        half = permuted(positions.examples, positions.in_epoch, self._seed) % 2
        mirror = tf.equal((half + positions.epochs) % 2, 1)
        reach = tf.cast(tf.where(tf.less(size, _SMALL), 1, 2), tf.float32)
        shifts = tf.cast(tf.floor(numbers[:, :2] * (2 * reach + 1) - reach), tf.int32)
        rows = _reflected(tf.range(size) + shifts[:, :1], size)
        columns = _reflected(tf.range(size) + shifts[:, 1:], size)
        columns = tf.where_v2(mirror[:, None], size - 1 - columns, columns)
        return _shifted(_resized(images, size), rows, columns, self._sizes[0][1] if len(self._sizes) == 1 else None)

    def centre(self, images):
        size = self._sizes[-1][1]
        return tf.ensure_shape(_resized(images, size), [None, size, size, 3])

    def _size(self, step_position):
        """Returns the image size in a step, an int or an int32 scalar, given the step's first position."""
        if len(self._sizes) == 1:
            return self._sizes[0][1]
        if self._total_examples is None:
            raise ValueError('several sizes need the length of the run in examples')
        begins = tf.constant([int(fraction * self._total_examples) for fraction, _ in self._sizes], tf.int64)
        return tf.gather(self.image_sizes(), tf.reduce_sum(tf.cast(step_position >= begins, tf.int32)) - 1)


def _reflected(index, size):
    """Reflects indices at the border, without repeating it."""
    index = tf.abs(index)
    return tf.minimum(index, 2 * (size - 1) - index)


def _resized(images, size):
    """Converts images uint8 [n, height, width, 3] to float32 [n, size, size, 3]; resizes by area if necessary."""
    if isinstance(size, int) and images.shape[1:3] == [size, size]:
        return tf.cast(images, tf.float32)
    return tf.raw_ops.ResizeArea(images=images, size=tf.stack([size, size]), align_corners=False)


def _shifted(images, rows, columns, static_size):
    """Returns the pixels of images [n, size, size, 3] at rows and columns, int32 [n, size] each."""
    n = tf.shape(images)[0]
    size = tf.shape(images)[1]
    index = tf.range(n)[:, None, None] * size * size + rows[:, :, None] * size + columns[:, None, :]
    pixels = tf.gather(tf.reshape(images, [-1, 3]), index)
    pixels.set_shape([images.shape[0], static_size, static_size, 3])
    return pixels
