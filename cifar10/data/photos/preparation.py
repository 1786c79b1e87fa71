"""How a picture is prepared before it is augmented or classified.

A picture is prepared first: it is brought to the size in which the data set of a run stores it. Then a box of it
becomes an image of the size that the network is fed. Pillow prepares pictures, except in exported models, where graph
operations do the same up to rounding.
"""
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.data.augment import Augmentation
from cifar10.data.draws import Positions
from cifar10.data.pipeline import as_graph
from cifar10.data.resize import as_bytes, centre_boxes, cut_to_size, resized


def short_side(image_size: int) -> int:
    """Returns the shorter side of prepared photos, in pixels; those that are smaller keep their size.

    7/8 of it, which `ResizedCrop` takes in evaluation, are `image_size`.
    """
    return round(image_size * 8 / 7)


class Preparation(NamedTuple):
    """How pictures are prepared, and which image of a prepared picture is classified.

    Attributes:
      size: height and width of the images of the run.
      augmentation: says which box of a prepared picture becomes an image in evaluation.
      stored_size: height and width of the images in the run's data set, to which the centre square of a picture is
        brought; None for photos, which stay whole: their shorter side becomes `short_side(size)`, if it is longer.
    """
    size: int
    augmentation: Augmentation
    stored_size: int | None

    def least_side(self, height: int, width: int) -> int:
        """Returns the shorter side that a picture of this height and width has once it is prepared."""
        return self.stored_size or min(height, width, short_side(self.size))

    def window(self, width: int, height: int) -> tuple[tuple[int, ...], tuple[int, int]]:
        """Returns the box of a picture that is kept (left, top, right, bottom), and its new (width, height)."""
        short = min(width, height)
        if self.stored_size:
            left, top = (width - short) // 2, (height - short) // 2
            return (left, top, left + short, top + short), (self.stored_size, self.stored_size)
        factor = self.least_side(height, width) / short
        return (0, 0, width, height), (round(width * factor), round(height * factor))

    def image(self, picture: tf.Tensor) -> tf.Tensor:
        """Returns the image of a prepared picture that is classified, uint8 [size, size, 3]."""
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
        """Returns a prepared picture, uint8 [height, width, 3], as `window` says, given one of any shape."""
        shape = tf.shape(pixels)[:2]
        short = tf.reduce_min(shape)
        if self.stored_size:
            top, left = tf.unstack((shape - short) // 2)
            pixels, kept = pixels[top:top + short, left:left + short], [self.stored_size] * 2
        else:
            factor = tf.minimum(short, short_side(self.size)) / short
            kept = tf.cast(tf.round(tf.cast(shape, tf.float64) * factor), tf.int32)
        return as_bytes(resized(pixels[None], kept))[0]


def boxes_of(augmentation: Augmentation, shapes: tf.Tensor, positions: Positions | None = None) -> tf.Tensor:
    """Returns `augmentation.boxes`, or the largest squares in the centre if that is None; shapes as there."""
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


def _decoded(contents):
    """Returns the pixels of the contents of a file, uint8 [height, width, 3]; of the first frame of an animation."""
    # TensorFlow gives the colours of a BMP as they are numbered in its palette, and has no op that reads this.
    is_bmp = tf.equal(tf.strings.substr(tf.strings.join([contents, '  ']), 0, 2), 'BM')
    message = 'classify_bytes takes no BMP; save it as PNG or JPEG'
    with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(is_bmp), [message])]):
        contents = tf.identity(contents)
    # The default method is faster and less exact; Pillow's is this one.
    pixels = tf.cond(tf.io.is_jpeg(contents),
                     lambda: tf.io.decode_jpeg(contents, channels=3, dct_method='INTEGER_ACCURATE'),
                     lambda: _on_white(tf.io.decode_image(contents, expand_animations=False)))
    return tf.ensure_shape(pixels, [None, None, 3])


def _on_white(pixels):
    """Returns pixels uint8 [height, width, 1 to 4 channels] as red, green and blue, on white where transparent."""
    def opaque():
        wide = tf.cast(pixels, tf.uint16)  # 255 * 255 fits
        alpha = wide[..., -1:]
        return tf.cast((wide[..., :-1] * alpha + 255 * (255 - alpha) + 127) // 255, tf.uint8)
    has_alpha = tf.equal(tf.shape(pixels)[-1] % 2, 0)  # grey and alpha, or colours and alpha
    colours = tf.cond(has_alpha, opaque, lambda: pixels)
    return tf.cond(tf.equal(tf.shape(colours)[-1], 1), lambda: tf.repeat(colours, 3, -1), lambda: colours)
