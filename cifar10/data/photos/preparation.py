"""Preparation of pictures before augmentation or classification.

A picture is first prepared: resized to the size that a run's data set stores. Then a box of it is resized to the
network's input. Pillow prepares pictures, except in exported models, where graph operations do the same.
"""
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.data.augment import Augmentation
from cifar10.data.draws import Positions
from cifar10.data.pipeline import as_graph
from cifar10.data.resize import as_bytes, centre_boxes, cut_to_size, resized


def short_side(image_size: int) -> int:
    """Returns the shorter side of prepared photos, in pixels; smaller photos keep their size.

    `ResizedCrop` crops to 7/8 of this side in evaluation, which is `image_size`.
    """
    return round(image_size * 8 / 7)


class Preparation(NamedTuple):
    """Prepares pictures, and cuts the images to classify out of them.

    Attributes:
      size: height and width of the images of the run.
      augmentation: chooses the box of a prepared picture for evaluation.
      stored_size: height and width of the images in the run's data set, the new size of a picture; None for photos,
        which keep their shape: their shorter side is reduced to `short_side(size)` if it is longer.
    """
    size: int
    augmentation: Augmentation
    stored_size: int | None

    def least_side(self, height: int, width: int) -> int:
        """Returns the shorter side of a prepared picture, given its original height and width."""
        return self.stored_size or min(height, width, short_side(self.size))

    def new_size(self, width: int, height: int) -> tuple[int, int]:
        """Returns the (width, height) of a prepared picture."""
        if self.stored_size:
            return self.stored_size, self.stored_size
        factor = self.least_side(height, width) / min(width, height)
        return round(width * factor), round(height * factor)

    def image(self, picture: tf.Tensor) -> tf.Tensor:
        """Returns the image to classify in a prepared picture, uint8 [size, size, 3]."""
        if self.stored_size:
            picture = tf.ensure_shape(picture, [self.stored_size, self.stored_size, 3])
            boxes = self.augmentation.boxes(tf.constant([[self.stored_size] * 2]))
            return cut_to_size(picture[None], boxes, self.size)[0]
        return cut(picture, boxes_of(self.augmentation, tf.shape(picture)[None, :2])[0], self.size)

    def images_of_files(self, files: tf.Tensor) -> tf.Tensor:
        """Returns the images of picture files in a model without Pillow: uint8 [n, size, size, 3].

        `tf.io.decode_image` decodes them. EXIF orientations are ignored.

        Args:
          files: string [n], the contents of the files.
        """
        def image(contents):
            return self.image(self._prepared(_decoded(contents)))
        return tf.map_fn(as_graph(image), files,
                         fn_output_signature=tf.TensorSpec([self.size, self.size, 3], tf.uint8))

    def _prepared(self, pixels):
        """Prepares a picture of any shape, in its `new_size`: uint8 [height, width, 3]."""
        if self.stored_size:
            return _resized_like_pillow(pixels, [self.stored_size] * 2)
        shape = tf.shape(pixels)[:2]
        short = tf.reduce_min(shape)
        factor = tf.minimum(short, short_side(self.size)) / short
        kept = tf.cast(tf.round(tf.cast(shape, tf.float64) * factor), tf.int32)
        return _resized_like_pillow(pixels, tf.unstack(kept))


def boxes_of(augmentation: Augmentation, shapes: tf.Tensor, positions: Positions | None = None) -> tf.Tensor:
    """Returns `augmentation.boxes`, or if they are None the whole pictures, in the same form."""
    boxes = augmentation.boxes(shapes, positions)
    return centre_boxes(shapes, 1.0) if boxes is None else boxes


def cut(picture: tf.Tensor, box: tf.Tensor, size: int) -> tf.Tensor:
    """Cuts a box, int32 [4] as in `Augmentation.boxes`, out of a picture of any shape.

    Args:
      picture: uint8 [height, width, 3].

    Returns:
      uint8 [size, size, 3].
    """
    top, left, bottom, right = tf.unstack(box)
    is_mirrored = right < left
    window = picture[top:bottom + 1, tf.minimum(left, right):tf.maximum(left, right) + 1]
    image = as_bytes(resized(window[None], [size, size]))[0]
    image = tf.raw_ops.Reverse(tensor=image, dims=tf.stack([False, is_mirrored, False]))
    return tf.ensure_shape(image, [size, size, 3])


def _resized_like_pillow(pixels, size):
    """Resizes a picture, uint8 [height, width, 3], as `picture_files` does: first the rows, then the columns."""
    for axis in (1, 0):
        pixels = _axis_resized(pixels, axis, size[axis])
    return pixels


def _axis_resized(pixels, axis, length):
    """Resizes one axis with Pillow's bilinear filter, whose weights are integers in units of 2^-22."""
    shape, unit = tf.unstack(tf.shape(pixels)), 1 << 22
    old, shape[axis] = shape[axis], length
    scale = old / length
    reach = tf.maximum(scale, 1)
    centres = (tf.cast(tf.range(length), tf.float64) + 0.5) * scale
    taps = tf.range(2 * tf.cast(tf.ceil(reach), tf.int32) + 1)[:, None] + tf.cast(tf.floor(centres - reach), tf.int32)
    weights = tf.maximum(1 - tf.abs(tf.cast(taps, tf.float64) + 0.5 - centres) / reach, 0)
    weights = tf.where_v2((taps >= 0) & (taps < old), weights, 0)
    weights = tf.cast(tf.floor(weights / tf.reduce_sum(weights, 0) * unit + 0.5), tf.int32)

    def add(total, tap):
        place, weight = tap
        weight = tf.reshape(weight, [length] + [1] * (2 - axis))
        return total + tf.cast(tf.gather(pixels, place, axis=axis), tf.int32) * weight
    # One tap at a time: all of them together would need many times the memory of the picture.
    total = tf.foldl(add, (tf.clip_by_value(taps, 0, old - 1), weights), tf.fill(shape, unit // 2))
    return tf.cast(total // unit, tf.uint8)


def _decoded(contents):
    """Decodes the contents of a file to uint8 [height, width, 3]; of an animation, only the first frame."""
    # TensorFlow returns the palette indices of a BMP as colours, and has no operation that reads the palette.
    is_bmp = tf.equal(tf.strings.substr(tf.strings.join([contents, '  ']), 0, 2), 'BM')
    message = 'classify_bytes does not support BMP; save it as PNG or JPEG'
    with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(is_bmp), [message])]):
        contents = tf.identity(contents)
    # The same method as Pillow; the default is faster and less exact.
    pixels = tf.cond(tf.io.is_jpeg(contents),
                     lambda: tf.io.decode_jpeg(contents, channels=3, dct_method='INTEGER_ACCURATE'),
                     lambda: _on_white(tf.io.decode_image(contents, expand_animations=False)))
    return tf.ensure_shape(pixels, [None, None, 3])


def _on_white(pixels):
    """Converts pixels uint8 [height, width, 1 to 4 channels] to red, green and blue, on a white background."""
    def opaque():
        wide = tf.cast(pixels, tf.uint16)  # 255 * 255 fits
        alpha = wide[..., -1:]
        return tf.cast((wide[..., :-1] * alpha + 255 * (255 - alpha) + 127) // 255, tf.uint8)
    has_alpha = tf.equal(tf.shape(pixels)[-1] % 2, 0)  # grey and alpha, or colours and alpha
    colours = tf.cond(has_alpha, opaque, lambda: pixels)
    return tf.cond(tf.equal(tf.shape(colours)[-1], 1), lambda: tf.repeat(colours, 3, -1), lambda: colours)
