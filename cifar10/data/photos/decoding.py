"""Parts of pictures as square images, as graph operations.

The pixels depend on the decoded picture and on the part, not on the format of the file. Training, evaluation,
classification and exported models all use these operations.
"""
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.data.augment import Augmentation
from cifar10.data.photos import headers
from cifar10.data.resize import as_bytes, centre_boxes, planes_of, stored_parts

_SCALES = (1, 2, 4, 8)  # libjpeg decodes at a fraction of the size in less time and memory
_LEAST = 2  # pixels that a fraction must leave for each pixel of the image, so that little of what it smooths is seen
_MARGIN = 2  # columns; libjpeg interpolates colours in another way at the edge of what it decodes
_SIXTEEN_BITS = b'\x10'  # the byte 24 of a PNG that has so many bits a channel


class Part(NamedTuple):
    """A part of a picture; in a batch each tensor has a row for each picture.

    Attributes:
      window: int32 [4], first row, first column, height and width in the picture as it is stored.
      transposed: bool, whether rows of the stored picture are columns of the one that is wanted.
      reversed: bool [3], whether its rows, its columns and its colours are then reversed; the last is False.
    """
    window: tf.Tensor
    transposed: tf.Tensor
    reversed: tf.Tensor


def parts(orientation: tf.Tensor, shapes: tf.Tensor, boxes: tf.Tensor) -> Part:
    """Returns parts of a batch of pictures.

    Args:
      orientation, shapes: int32 [n] and [n, 2], what `headers.read` returns for each picture.
      boxes: int32 [n, 4], the parts of the pictures as they are shown, as `Augmentation.boxes` returns them.
    """
    height, width = tf.unstack(shapes, axis=1)
    top, left, bottom, right = tf.unstack(boxes, axis=1)
    is_mirrored = right < left
    left, right = tf.minimum(left, right), tf.maximum(left, right)
    upside_down = _is_one_of(orientation, [3, 4, 7, 8])
    top, bottom = _from_other_end(top, bottom, height, upside_down)
    right_to_left = _is_one_of(orientation, [2, 3, 6, 7])
    left, right = _from_other_end(left, right, width, right_to_left)
    rows = tf.stack([top, bottom + 1 - top], 1)
    columns = tf.stack([left, right + 1 - left], 1)
    transposed = orientation >= headers.TRANSPOSED
    first_axis = tf.where(transposed, columns, rows)
    second_axis = tf.where(transposed, rows, columns)
    window = tf.reshape(tf.stack([first_axis, second_axis], 2), [-1, 4])
    never = tf.zeros_like(is_mirrored)
    return Part(window, transposed, tf.stack([upside_down, tf.not_equal(right_to_left, is_mirrored), never], 1))


def _is_one_of(orientation, values):
    return tf.reduce_any(tf.equal(orientation[:, None], values), 1)


def _from_other_end(first, last, extent, where):
    """Returns (first, last) of ranges of rows or columns, counted from the other end where `where` is true."""
    return tf.where(where, extent - 1 - last, first), tf.where(where, extent - 1 - first, last)


def decoded(contents: tf.Tensor, part: Part, size: int) -> tf.Tensor:
    """Returns a part of the picture in a JPEG or PNG file as it is shown: uint8 [size, size, 3].

    A JPEG is decoded to the bits of libjpeg's reference decoder, at 1/2, 1/4 or 1/8 of its size where that leaves at
    least twice `size`.

    Args:
      contents: string scalar, of the file.
      part: of the picture.
      size: height and width of the image.
    """
    def jpeg(divisor):
        return lambda: _shown(*_jpeg_window(contents, part.window, divisor), part, size)

    def png():
        return cut(_png_pixels(contents), part, size)
    room = tf.reduce_min(part.window[2:])
    scale = sum(tf.cast(room >= divisor * _LEAST * size, tf.int32) for divisor in _SCALES[1:])
    return tf.switch_case(tf.where(tf.io.is_jpeg(contents), scale, len(_SCALES)), [*map(jpeg, _SCALES), png])


def cut(pixels: tf.Tensor, part: Part, size: int) -> tf.Tensor:
    """Returns a part of a picture as it is shown, on a white ground: uint8 [size, size, 3].

    Args:
      pixels: uint8 [height, width, 1 to 4 channels], the picture as it is stored.
      part: of the picture.
      size: height and width of the image.
    """
    top, left, height, width = tf.unstack(part.window)
    window = _on_white(pixels[top:top + height, left:left + width])
    return _shown(window, tf.zeros([2]), tf.cast(part.window[2:], tf.float32), part, size)


def _jpeg_window(contents, window, divisor):
    """Decodes a window of a JPEG at 1/divisor of its size.

    Returns:
      (uint8 [height, width, 3], all pixels there that have some of the window; float32 [2], the row and the column in
      them where it begins; float32 [2], its height and width).
    """
    first = window[:2] // divisor
    end = -(-(window[:2] + window[2:]) // divisor)
    top, left = tf.unstack(first)
    bottom, right = tf.unstack(end)
    width = -(-tf.image.extract_jpeg_shape(contents)[1] // divisor)
    before = tf.minimum(left, _MARGIN)
    after = tf.minimum(width - right, _MARGIN)
    pixels = tf.image.decode_and_crop_jpeg(
        contents, [top, left - before, bottom - top, before + right - left + after], channels=3, ratio=divisor,
        dct_method='INTEGER_ACCURATE')[:, before:before + right - left]
    exact = tf.cast(window, tf.float32) / divisor
    return pixels, exact[:2] - tf.cast(first, tf.float32), exact[2:]


def _png_pixels(contents):
    """Returns the pixels of a PNG, uint8 [height, width, 1 to 4 channels]; those of 16 bits are divided by 257."""
    return tf.cond(tf.equal(tf.strings.substr(contents, 24, 1), _SIXTEEN_BITS),
                   lambda: tf.cast(tf.io.decode_png(contents, dtype=tf.uint16) // 257, tf.uint8),
                   lambda: tf.io.decode_png(contents))


def _on_white(pixels):
    """Returns pixels uint8 [height, width, 1 to 4 channels] as red, green and blue, on white where transparent."""
    def opaque():
        wide = tf.cast(pixels, tf.uint16)  # 255 * 255 fits
        alpha = wide[..., -1:]
        return tf.cast((wide[..., :-1] * alpha + 255 * (255 - alpha) + 127) // 255, tf.uint8)
    has_alpha = tf.equal(tf.shape(pixels)[-1] % 2, 0)  # grey and alpha, or colours and alpha
    colours = tf.cond(has_alpha, opaque, lambda: pixels)
    colours = tf.cond(tf.equal(tf.shape(colours)[-1], 1), lambda: tf.repeat(colours, 3, -1), lambda: colours)
    return tf.ensure_shape(colours, [None, None, 3])


def _shown(pixels, first, extent, part, size):
    """Returns a window of pixels [height, width, 3], resized and turned as it is shown: uint8 [size, size, 3].

    Interpolated bilinearly, with anti-aliasing where it becomes smaller, as `resize.resized` does.
    """
    scale = size / extent
    image = tf.raw_ops.ScaleAndTranslate(
        images=pixels[None], size=[size, size], scale=scale, translation=-first * scale, kernel_type='triangle',
        antialias=True)[0]
    # In floats, because on some CPUs oneDNN cannot transpose bytes, and prints a line about it.
    image = tf.cond(part.transposed, lambda: tf.transpose(image, [1, 0, 2]), lambda: image)
    return tf.ensure_shape(tf.raw_ops.Reverse(tensor=as_bytes(image), dims=part.reversed), [size, size, 3])


class Preparation(NamedTuple):
    """How a picture is cropped and resized before it is augmented or classified.

    Attributes:
      size: height and width of the images of the run.
      augmentation: says which part of a picture becomes an image in evaluation.
      stored_size: height and width of the images in the run's data set, to which the centre square of a picture is
        brought first; None if the photos of the run stay in their files.
    """
    size: int
    augmentation: Augmentation
    stored_size: int | None

    def of_file(self, contents: tf.Tensor) -> tf.Tensor:
        """Returns the image of a JPEG or PNG file, uint8 [size, size, 3]; `contents` is a string scalar."""
        orientation, shape = headers.read(contents)
        return self._image(lambda part, size: decoded(contents, part, size), orientation, shape)

    def of_pixels(self, pixels: tf.Tensor) -> tf.Tensor:
        """Returns the image of a picture uint8 [height, width, 1 to 4 channels]: uint8 [size, size, 3]."""
        return self._image(lambda part, size: cut(pixels, part, size), tf.constant(headers.UPRIGHT),
                           tf.shape(pixels)[:2])

    def _image(self, cut_to, orientation, shape):
        """Returns the image of a picture; `cut_to` is a function (Part, size) -> this part as an image of this size."""
        # The box in the picture: the centre square where images are stored, or where the augmentation takes all of it.
        boxes = None if self.stored_size else self.augmentation.boxes(shape[None])
        if boxes is None:
            boxes = centre_boxes(shape[None], 1.0)
        part = Part(*(each[0] for each in parts(orientation[None], shape[None], boxes)))
        if not self.stored_size:
            return cut_to(part, self.size)
        planes = planes_of(cut_to(part, self.stored_size)[None])
        boxes_in_stored = self.augmentation.boxes(tf.constant([[self.stored_size] * 2]))
        return tf.stack(tf.unstack(stored_parts(planes, boxes_in_stored, self.size)[0]), -1)
