"""Augmentation of photos: a random crop, resized and mirrored at random.

The crop depends on the picture's size only, so it is chosen before the picture is read.
"""
import math

import tensorflow.compat.v1 as tf

from cifar10.data.augment import Augmentation
from cifar10.data.draws import draws
from cifar10.data.resize import centre_boxes, mirrored

# Fractions of the picture's area, and width / height (Szegedy et al. 2015, section 6; torchvision's RandomResizedCrop).
_AREAS = (0.08, 1.0)
_ASPECTS = (3 / 4, 4 / 3)
_BLOCKS = 5  # blocks of random numbers; each is enough for two of the ten attempts, as in torchvision

_CENTRE = 7 / 8  # fraction of each side for evaluation


class ResizedCrop(Augmentation):
    """Trains on a random crop of each picture, resized and mirrored at random; evaluates the middle.

    The crop has 8 to 100% of the picture's area, uniformly distributed, and a width of 3/4 to 4/3 of its height,
    uniformly distributed on a logarithmic scale (Szegedy et al. 2015, "Going deeper with convolutions", section 6). The
    first of ten draws that fits into the picture is used, as in torchvision. If none fits, the crop is the largest with
    an allowed aspect ratio, at a random place. Half of the crops are mirrored. Evaluation uses the middle of a picture,
    7/8 of each side, resized to a square as the crops are.
    """
    seen = _CENTRE ** 2

    def flags_for(self, size):
        return f'--image_size={size} --augmentation=resized_crop'

    def boxes(self, shapes, positions=None):
        if positions is None:
            return centre_boxes(shapes, _CENTRE)
        chosen = _crops(tf.cast(shapes, tf.float32), positions, self._seed)
        numbers = draws(positions.first, shapes.shape[0], self._seed)
        free = tf.cast(shapes - chosen + 1, tf.float32)
        first = tf.minimum(tf.cast(numbers[:, :2] * free, tf.int32), shapes - chosen)  # a product may round up
        return mirrored(first, first + chosen - 1, numbers[:, 2] < 0.5)


def _crops(shapes, positions, seed):
    """Returns the heights and widths of random crops, int32 [n, 2], of pictures, float32 [n, 2]."""
    blocks = [draws(positions.first, shapes.shape[0], seed, 1 + i) for i in range(_BLOCKS)]
    numbers = tf.concat([block[:, 2 * half:2 * half + 2] for block in blocks for half in (0, 1)], 1)
    numbers = tf.reshape(numbers, [shapes.shape[0], 2 * _BLOCKS, 2])
    smallest, largest = _AREAS
    narrowest, widest = _ASPECTS
    areas = (smallest + (largest - smallest) * numbers[..., 0]) * tf.reduce_prod(shapes, 1)[:, None]
    aspects = tf.exp(math.log(narrowest) + math.log(widest / narrowest) * numbers[..., 1])
    tried = tf.stack([tf.sqrt(areas / aspects), tf.sqrt(areas * aspects)], 2)
    height, width = shapes[:, 0], shapes[:, 1]
    fallback = tf.stack([tf.minimum(height, width / narrowest), tf.minimum(width, height * widest)], 1)
    tried = tf.maximum(tf.cast(tf.round(tf.concat([tried, fallback[:, None]], 1)), tf.int32), 1)
    fits = tf.reduce_all(tried <= tf.cast(shapes, tf.int32)[:, None], 2)
    return tf.gather(tried, tf.argmax(tf.cast(fits, tf.int32), 1), batch_dims=1)  # the first crop that fits

