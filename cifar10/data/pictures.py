"""Picture files of any size as images of 32x32 pixels: PNG, JPEG, GIF, BMP, and WebP where TensorFlow decodes it."""
import contextlib
import multiprocessing.pool
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf
from tqdm import tqdm

from cifar10.console import quiet_stderr
from cifar10.data import bmp, headers
from cifar10.data.records import SIZE

_LARGEST = 256 << 20  # bytes of a file; a picture that is larger is a mistake
_HEAD = 16 << 20  # bytes of a file that are searched for its size; phones put previews of some megabytes before it
_MOST_PIXELS = 128_000_000  # of a picture; cameras make 100 million
_PIXEL_BYTES = 24  # that a pixel takes while it is decoded, at most (measured)
_MEMORY = _MOST_PIXELS * _PIXEL_BYTES + 2 * _LARGEST  # that all pictures take at a time: the largest one, or several
_LIBJPEG = re.compile(rb'JPEG|JFIF|Insufficient memory')  # its complaints, which name no file
_MOST_THREADS = 8
_NONE = 'not a picture that this TensorFlow decodes, or a damaged one'


class NoPicture(Exception):
    """The file is not a picture that can be read; the message says why."""


def shown(path: str) -> str:
    """Returns a path as text for a line: with escapes, in quotes, if it has control characters or is not UTF-8."""
    return path if path.isprintable() else repr(path)


class Room:
    """An amount of memory that several threads share.

    Args:
      size: bytes.
    """

    def __init__(self, size: int):
        self._left, self._changed = size, threading.Condition()

    @contextlib.contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Context in which `size` bytes are taken; waits until that many are left."""
        with self._changed:
            self._changed.wait_for(lambda: size <= self._left)
            self._left -= size
        try:
            yield
        finally:
            with self._changed:
                self._left += size
                self._changed.notify_all()


class Decoder:
    """Decodes picture files on the CPU; may be called from several threads, which wait for each other's memory."""

    def __init__(self):
        with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
            self._contents = tf.placeholder(tf.string, [])
            self._pixels = tf.io.decode_image(self._contents, channels=0, expand_animations=False)
            self._image = _resized(_square(self._pixels))
        self._session = tf.Session(graph=graph, config=tf.ConfigProto(device_count={'GPU': 0}))
        self._room = Room(_MEMORY)

    def __call__(self, path: str) -> np.ndarray:
        """Returns the centre square of the picture in a file, uint8 [32, 32, 3]; of an animation the first frame.

        Raises:
          NoPicture: the file cannot be read or decoded, or not with the memory that there is.
        """
        try:
            if not os.path.isfile(path) and os.path.exists(path):
                raise NoPicture('not a file')
            with open(path, 'rb') as stream:
                return self._decoded(stream)
        except OSError as error:
            raise NoPicture(error.strerror) from error
        except (MemoryError, tf.errors.ResourceExhaustedError) as error:
            raise NoPicture('too large for the memory that is free') from error
        except tf.errors.OpError as error:
            raise NoPicture(_NONE) from error

    def _decoded(self, stream):
        """Returns the image in an open file; refuses it by its header, before it takes memory."""
        size = os.fstat(stream.fileno()).st_size
        if size > _LARGEST:
            raise NoPicture(f'more than {_LARGEST >> 20} MB')
        head = stream.read(_HEAD)
        if not head:
            raise NoPicture('an empty file')
        width, height = headers.size(head) or (0, 0)
        if not width:
            raise NoPicture(_NONE)
        if width * height > _MOST_PIXELS:
            raise NoPicture(f'{width} x {height} pixels, more than {_MOST_PIXELS // 10 ** 6} million; make it smaller')
        with self._room.taken(width * height * _PIXEL_BYTES + 2 * size):
            return self._session.run(self._image, self._fed(head + stream.read(size - len(head))))

    def _fed(self, contents):
        """Returns what the graph is fed with for a file: its contents, or its pixels."""
        if contents.startswith(b'BM'):
            try:
                return {self._pixels: bmp.decode(contents)}
            except ValueError as error:
                raise NoPicture(str(error)) from error
        return {self._contents: headers.first_frame(contents)}

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


def _square(pixels):
    """Returns the square in the centre of pixels [height, width, channels]."""
    height, width = tf.shape(pixels)[0], tf.shape(pixels)[1]
    side = tf.minimum(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return pixels[top:top + side, left:left + side]


def _resized(pixels):
    """Returns uint8 [side, side, 1 to 4 channels] as uint8 [32, 32, 3]; what is transparent becomes white.

    A photo takes four times as much memory in floats, so only what is transparent is converted before it is resized,
    one colour after the other.
    """
    channels = tf.shape(pixels)[-1]

    def opaque():
        alpha = tf.cast(pixels[..., -1:], tf.float32) / 255
        white = 255 * (1 - alpha)
        colours = tf.map_fn(
            lambda k: _smaller(tf.cast(pixels[..., k:k + 1], tf.float32) * alpha + white)[..., 0],
            tf.range(channels - 1), fn_output_signature=tf.float32, parallel_iterations=1)
        return tf.transpose(colours, [1, 2, 0])
    has_alpha = tf.equal(channels % 2, 0)  # grey and alpha, or colours and alpha
    resized = tf.cond(has_alpha, opaque, lambda: _smaller(pixels))
    resized = tf.cond(channels < 3, lambda: tf.repeat(resized, 3, -1), lambda: resized)
    return tf.ensure_shape(tf.saturate_cast(tf.round(resized), tf.uint8), [SIZE, SIZE, 3])


def _smaller(pixels):
    """Returns pixels [side, side, channels] resized with anti-aliasing: float32 [32, 32, channels]."""
    return tf2.image.resize(pixels[None], [SIZE, SIZE], antialias=True)[0]
