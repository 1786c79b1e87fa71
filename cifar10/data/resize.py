"""How images are brought to another size, the same for records, for picture files and in an exported model."""
import tensorflow as tf2
import tensorflow.compat.v1 as tf


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
      boxes: int32 [n, 4], the first row, first column, last row and last column of each part. From right to left, the
        part is mirrored.
      size: height and width in pixels.
      method: 'bilinear', or 'nearest', with which parts of this size are exact.
    """
    height, width = planes.shape[2:]
    corners = tf.cast(boxes, tf.float32) / (tf.constant([height, width, height, width], tf.float32) - 1)
    # A millionth inside the image: what rounding puts outside would be black.
    corners = 1e-6 + (1 - 2e-6) * corners
    # Each plane is an image with one channel.
    n = planes.shape[0] or tf.shape(planes)[0]
    images = tf.image.crop_and_resize(tf.reshape(planes, [-1, height, width, 1]), tf.repeat(corners, 3, 0),
                                      tf.range(3 * n), [size, size], method)
    return tf.reshape(images, [-1, 3, size, size])
