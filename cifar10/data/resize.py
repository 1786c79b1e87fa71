"""How parts are cut out of images, resized and normalised: the same for records, picture files and exported models."""
from collections.abc import Sequence

import tensorflow as tf2
import tensorflow.compat.v1 as tf

AS_THEY_ARE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)  # the mean and the deviation with which `normalised` changes no values


def resized(images: tf.Tensor, size: int) -> tf.Tensor:
    """Returns images in another size: interpolated bilinearly, with anti-aliasing where they become smaller.

    Args:
      images: uint8 or float32 [n, height, width, channels].
      size: height and width in pixels.

    Returns:
      float32 [n, size, size, channels], in the range of the images.
    """
    height = images.shape[1]
    # Images that become larger need no anti-aliasing, whose operation takes several times as long.
    return tf2.image.resize(images, [size, size], antialias=height is None or size < height)


def resized_window(pixels: tf.Tensor, first: tf.Tensor, extent: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Returns a window of a picture in another size: interpolated as `resized` does, but always with anti-aliasing.

    Args:
      pixels: uint8 [height, width, 3].
      first, extent: float32 [2], the row and column where the window begins, and its height and width.
      shape: int32 [2], the height and width of what is returned.

    Returns:
      float32 [*shape, 3], in the range of the pixels.
    """
    scale = tf.cast(shape, tf.float32) / extent
    return tf.raw_ops.ScaleAndTranslate(
        images=pixels[None], size=shape, scale=scale, translation=-first * scale, kernel_type='triangle',
        antialias=True)[0]


def as_bytes(pixels: tf.Tensor) -> tf.Tensor:
    """Returns float32 pixels from 0 to 255, rounded, as uint8."""
    return tf.saturate_cast(tf.round(pixels), tf.uint8)


def resized_planes(planes: tf.Tensor, size: int) -> tf.Tensor:
    """Returns planes uint8 [n, 3, height, width] as uint8 [n, 3, size, size]; as they are if they have that size."""
    height, width = planes.shape[2:]
    if (height, width) == (size, size):
        return planes
    # Each plane as an image with one channel, so that no bytes are transposed.
    images = resized(tf.reshape(planes, [-1, height, width, 1]), size)
    return tf.reshape(as_bytes(images), [-1, 3, size, size])


def stored_parts(planes: tf.Tensor, boxes: tf.Tensor | None, size: int) -> tf.Tensor:
    """Returns parts of images as a data set stores them, in the size of a run: uint8 [n, 3, size, size].

    Args:
      planes: uint8 [n, 3, height, width].
      boxes: as for `cut_planes`; None for whole images.
      size: height and width in pixels.
    """
    return resized_planes(planes, size) if boxes is None else as_bytes(cut_planes(planes, boxes, size))


def cut_planes(planes: tf.Tensor, boxes: tf.Tensor, size: int, method: str = 'bilinear') -> tf.Tensor:
    """Returns parts of images, resized: float32 [n, 3, size, size].

    Args:
      planes: uint8 [n, 3, height, width].
      boxes: int32 [n, 4], the first row, first column, last row and last column of each part. If the last
        column is left of the first, the part is mirrored.
      size: height and width in pixels.
      method: 'bilinear', or 'nearest', with which parts of this size are exact.
    """
    height, width = planes.shape[2:]
    corners = tf.cast(boxes, tf.float32) / (tf.constant([height, width, height, width], tf.float32) - 1)
    # A millionth inside the image: what rounding puts outside would be black.
    corners = 1e-6 + (1 - 2e-6) * corners
    # Each plane is an image with one channel.
    n = planes.shape[0] or tf.shape(planes)[0]
    corners = tf.reshape(tf.tile(corners, [1, 3]), [-1, 4])  # for each plane those of its image
    images = tf.image.crop_and_resize(tf.reshape(planes, [-1, height, width, 1]), corners, tf.range(3 * n),
                                      [size, size], method)
    return tf.reshape(images, [-1, 3, size, size])


def planes_of(pixels: tf.Tensor) -> tf.Tensor:
    """Returns pixels uint8 [n, height, width, 3] as planes uint8 [n, 3, height, width]."""
    # Not tf.transpose: on some CPUs oneDNN cannot transpose bytes, and prints a line about it.
    return tf.stack(tf.unstack(pixels, axis=-1), 1)


def mirrored(first: tf.Tensor, last: tf.Tensor, mirror: tf.Tensor) -> tf.Tensor:
    """Returns parts of pictures as `Augmentation.boxes` does, some of them from right to left.

    Args:
      first, last: int32 [n, 2], the first and the last row and column of each part.
      mirror: bool [n].
    """
    boxes = tf.concat([first, last], 1)
    return tf.where(mirror, tf.gather(boxes, [0, 3, 2, 1], axis=1), boxes)


def centre_boxes(shapes: tf.Tensor, fraction: float) -> tf.Tensor:
    """Returns the squares in the centre of pictures, as `Augmentation.boxes` returns parts.

    Args:
      shapes: int32 [n, 2], the heights and widths of the pictures in pixels.
      fraction: the side of a square, as a fraction of the shorter side of its picture.
    """
    side = tf.cast(tf.round(tf.cast(tf.reduce_min(shapes, 1, keepdims=True), tf.float32) * fraction), tf.int32)
    first = (shapes - side) // 2
    return tf.concat([first, first + side - 1], 1)


def normalised(planes: tf.Tensor, mean: Sequence[float], deviation: Sequence[float]) -> tf.Tensor:
    """Returns planes uint8 [n, 3, height, width] as images float32 [n, height, width, 3], normalised.

    Args:
      mean, deviation: the means and standard deviations of red, green and blue.
    """
    # Before the transposition, because on some CPUs oneDNN cannot transpose bytes, and prints a line about it.
    scale = 1 / tf.constant(deviation)[:, None, None]
    images = (tf.cast(planes, tf.float32) - tf.constant(mean)[:, None, None]) * scale
    return tf.transpose(images, [0, 2, 3, 1])
