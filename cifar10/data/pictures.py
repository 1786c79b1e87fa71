"""Picture files of any size as images of 32x32 pixels: PNG, JPEG, GIF, BMP, and what else this TensorFlow decodes."""
import multiprocessing.pool
import os
import re
import sys
from collections.abc import Sequence

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf
from tqdm import tqdm

from cifar10.cli.terminal import quiet_stderr
from cifar10.data.records import SIZE

_LARGEST = 256 << 20  # bytes of a file; a picture that is larger is a mistake
_LIBJPEG = re.compile(rb'JPEG|JFIF')  # its complaints, which name no file
_MOST_THREADS = 8  # a large photo takes half a gigabyte while it is resized


class NoPicture(Exception):
    """The file is not a picture that can be read; the message says why."""


class Decoder:
    """Decodes picture files, one at a time, on the CPU; may be called from several threads."""

    def __init__(self):
        with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
            self._contents = tf.placeholder(tf.string, [])
            pixels = tf.io.decode_image(self._contents, channels=0, expand_animations=False)
            self._image = _resized(_opaque(_square(pixels)))
        self._session = tf.Session(graph=graph, config=tf.ConfigProto(device_count={'GPU': 0}))

    def __call__(self, path: str) -> np.ndarray:
        """Returns the centre square of the picture in a file, uint8 [32, 32, 3]; of an animation the first frame.

        Raises:
          NoPicture: the file cannot be read or decoded.
        """
        try:
            if not os.path.isfile(path) and os.path.exists(path):
                raise NoPicture('not a file')
            with open(path, 'rb') as stream:
                contents = stream.read(_LARGEST + 1)
        except OSError as error:
            raise NoPicture(error.strerror) from error
        if len(contents) > _LARGEST:
            raise NoPicture(f'more than {_LARGEST >> 20} MB')
        if not contents:
            raise NoPicture('an empty file')
        try:
            return self._session.run(self._image, {self._contents: contents})
        except tf.errors.ResourceExhaustedError:
            raise  # a picture, for which this machine has too little memory now
        except tf.errors.OpError as error:
            raise NoPicture('not a picture that this TensorFlow decodes, or a damaged one') from error

    def try_each(self, paths: Sequence[str], bar: bool = False) -> list:
        """Returns for each file what a call returns, or the NoPicture that it raises.

        Args:
          paths: of the files.
          bar: whether to show the progress, if standard output is a terminal.
        """
        def attempt(path):
            try:
                return self(path)
            except NoPicture as error:
                return error
        threads = min(os.cpu_count(), _MOST_THREADS)
        with quiet_stderr(_LIBJPEG), multiprocessing.pool.ThreadPool(threads) as pool:
            return list(tqdm(pool.imap(attempt, paths), total=len(paths), unit='file', file=sys.stdout, leave=False,
                             disable=not (bar and sys.stdout.isatty())))


def _opaque(pixels):
    """Returns float32 [height, width, 3] of uint8 pixels with 1 to 4 channels; what is transparent becomes white."""
    channels = tf.shape(pixels)[-1]
    pixels = tf.cast(pixels, tf.float32)
    has_alpha = tf.equal(channels % 2, 0)  # grey and alpha, or colours and alpha
    alpha = tf.cond(has_alpha, lambda: pixels[..., -1:] / 255, lambda: tf.ones_like(pixels[..., :1]))
    colours = tf.cond(channels < 3, lambda: tf.repeat(pixels[..., :1], 3, -1), lambda: pixels[..., :3])
    return colours * alpha + 255 * (1 - alpha)


def _square(pixels):
    """Returns the square in the centre of pixels [height, width, channels]."""
    height, width = tf.shape(pixels)[0], tf.shape(pixels)[1]
    side = tf.minimum(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return pixels[top:top + side, left:left + side]


def _resized(pixels):
    """Returns float32 [side, side, 3] resized with anti-aliasing: uint8 [32, 32, 3]."""
    resized = tf2.image.resize(pixels[None], [SIZE, SIZE], antialias=True)[0]
    return tf.ensure_shape(tf.saturate_cast(tf.round(resized), tf.uint8), [SIZE, SIZE, 3])
