"""Your own augmentations: functions of a tower's batch, which follow a built-in augmentation or `none`.

    python multi_gpu_train.py --augmentation=shift,examples/augmentations.py:mixup

The random numbers of `uniform_like` are functions of the seed and of an image's position in the run, so they are the
same after a resume, and for any number of towers.
"""
import math

import tensorflow.compat.v1 as tf

from cifar10.model import uniform_like


def cutout(images, labels, num_classes):
    """Greys out a square of half the height at a random place in each image (DeVries and Taylor 2017)."""
    size = tf.cast(tf.shape(images)[1], tf.float32)
    inside = _square(images, size / 2)
    return tf.where_v2(inside, 127.5, images), labels


def colour_jitter(images, labels, num_classes):
    """Changes brightness, contrast and saturation, each by up to 40%."""
    images *= _uniform(images, 0.6, 1.4)
    mean = tf.reduce_mean(images, [1, 2, 3], keepdims=True)
    images = mean + _uniform(images, 0.6, 1.4) * (images - mean)
    grey = tf.reduce_mean(images, 3, keepdims=True)
    images = grey + _uniform(images, 0.6, 1.4) * (images - grey)
    return tf.clip_by_value(images, 0.0, 255.0), labels


def rotation(images, labels, num_classes):
    """Rotates each image by up to 15 degrees; fills the corners by reflection."""
    angle = _uniform(images, -math.pi / 12, math.pi / 12)[:, 0, 0, 0]
    cos, sin = tf.cos(angle), tf.sin(angle)
    middle = (tf.cast(tf.shape(images)[1], tf.float32) - 1) / 2
    zero = tf.zeros_like(angle)
    transforms = tf.stack([cos, -sin, middle - middle * (cos - sin), sin, cos, middle - middle * (sin + cos),
                           zero, zero], 1)
    rotated = tf.raw_ops.ImageProjectiveTransformV3(
        images=images, transforms=transforms, output_shape=tf.shape(images)[1:3], fill_value=0.0,
        interpolation='BILINEAR', fill_mode='REFLECT')
    return rotated, labels


def mixup(images, labels, num_classes):
    """Mixes each image and its label with another image of the batch and its label (Zhang et al. 2018)."""
    share = _uniform(images)
    classes = tf.one_hot(labels, num_classes)
    mixed = share * images + (1 - share) * tf.reverse(images, [0])
    share = share[:, :, 0, 0]
    return mixed, share * classes + (1 - share) * tf.reverse(classes, [0])


def cutmix(images, labels, num_classes):
    """Pastes a square of another image of the batch into each; labels follow the areas (Yun et al. 2019)."""
    size = tf.cast(tf.shape(images)[1], tf.float32)
    pasted = _square(images, size * tf.sqrt(_uniform(images)))
    share = 1 - tf.reduce_mean(tf.cast(pasted, tf.float32), [1, 2])
    classes = tf.one_hot(labels, num_classes)
    return (tf.where_v2(pasted, tf.reverse(images, [0]), images),
            share * classes + (1 - share) * tf.reverse(classes, [0]))


def _uniform(images, low=0.0, high=1.0):
    """Returns a random number for each image, float32 [n, 1, 1, 1]."""
    return low + (high - low) * uniform_like(images[:, :1, :1, :1])


def _square(images, side):
    """Returns a mask of a square around a random pixel of each image, bool [n, height, width, 1]."""
    size = tf.shape(images)[1]
    places = tf.cast(tf.range(size), tf.float32) + 0.5
    row, column = (tf.cast(size, tf.float32) * _uniform(images) for _ in range(2))
    rows, columns = places[None, :, None, None] - row, places[None, None, :, None] - column
    return tf.maximum(tf.abs(rows), tf.abs(columns)) < side / 2
