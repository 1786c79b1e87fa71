"""Cuts boxes out of images and resizes them: the same for records, picture files and exported models."""
from collections.abc import Sequence

import tensorflow as tf2
import tensorflow.compat.v1 as tf


def resized(images: tf.Tensor, size: Sequence[int] | tf.Tensor) -> tf.Tensor:
    """Resizes images with bilinear interpolation, and with anti-aliasing if they become smaller.

    Args:
      images: uint8 or float32 [n, height, width, channels].
      size: the height and width of the result in pixels.

    Returns:
      float32 [n, *size, channels], in the range of the images.
    """
    height = images.shape[1]
    # Larger images need no anti-aliasing, which takes several times as long.
    return tf2.image.resize(images, size, antialias=height is None or size[0] < height)


def as_bytes(pixels: tf.Tensor) -> tf.Tensor:
    """Rounds float32 pixels from 0 to 255 to uint8."""
    return tf.saturate_cast(tf.round(pixels), tf.uint8)


def cut_to_size(images: tf.Tensor, boxes: tf.Tensor | None, size: int) -> tf.Tensor:
    """Cuts boxes out of images and resizes them: uint8 [n, size, size, 3].

    Args:
      images: uint8 [n, height, width, 3].
      boxes: as for `cut_boxes`; None for whole images.
      size: height and width in pixels.
    """
    if boxes is not None:
        return as_bytes(cut_boxes(images, boxes, size))
    return images if images.shape[1:3] == [size, size] else as_bytes(resized(images, [size, size]))


def cut_boxes(images: tf.Tensor, boxes: tf.Tensor, size: int, method: str = 'bilinear') -> tf.Tensor:
    """Cuts boxes out of images and resizes them: float32 [n, size, size, 3].

    Args:
      images: uint8 [n, height, width, 3].
      boxes: int32 [n, 4], the first row, first column, last row and last column of each. If the last column is
        left of the first, the box is mirrored.
      size: height and width in pixels.
      method: 'bilinear', or 'nearest', which is exact for boxes of this size.
    """
    height, width = images.shape[1:3]
    corners = tf.cast(boxes, tf.float32) / (tf.constant([height, width, height, width], tf.float32) - 1)
    # A millionth inside the image: rounding could move a corner outside, which would be black.
    corners = 1e-6 + (1 - 2e-6) * corners
    n = images.shape[0] or tf.shape(images)[0]
    return tf.image.crop_and_resize(images, corners, tf.range(n), [size, size], method)


def mirrored(first: tf.Tensor, last: tf.Tensor, mirror: tf.Tensor) -> tf.Tensor:
    """Returns boxes of pictures in the form of `Augmentation.boxes`; mirrored boxes run from right to left.

    Args:
      first, last: int32 [n, 2], the first and last row and column of each box.
      mirror: bool [n].
    """
    boxes = tf.concat([first, last], 1)
    return tf.where(mirror, tf.gather(boxes, [0, 3, 2, 1], axis=1), boxes)


def centre_boxes(shapes: tf.Tensor, fraction: float) -> tf.Tensor:
    """Returns a centred box in each picture, in the form of `Augmentation.boxes`.

    Args:
      shapes: int32 [n, 2], the heights and widths of the pictures in pixels.
      fraction: the height and width of a box, as fractions of its picture's.
    """
    sides = tf.maximum(tf.cast(tf.round(tf.cast(shapes, tf.float32) * fraction), tf.int32), 1)
    first = (shapes - sides) // 2
    return tf.concat([first, first + sides - 1], 1)
