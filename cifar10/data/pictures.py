"""Reads picture files of any size, and decodes them to square images of one size.

The formats are PNG, JPEG, GIF, BMP, and WebP if TensorFlow can decode it.
"""
import contextlib
import multiprocessing.pool
import os
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.console import progress_bar, quiet_stderr
from cifar10.data import bmp, headers
from cifar10.data.augment import centre_boxes
from cifar10.data.records import SIZE
from cifar10.data.resize import as_bytes, resized

_MOST_BYTES = 256 << 20  # of a file; a larger one is a mistake
_HEAD = 16 << 20  # bytes of a file that are searched for the size; phones put previews of some megabytes before it
_MOST_PIXELS = 128_000_000  # of a picture; cameras make 100 million
_PIXEL_BYTES = 24  # memory per pixel while a picture is decoded, at most (measured)
_MEMORY = _MOST_PIXELS * _PIXEL_BYTES + 2 * _MOST_BYTES  # for all pictures that are decoded at a time
_LIBJPEG = re.compile(rb'JPEG|JFIF|Insufficient memory')  # its complaints, which name no file
_MOST_THREADS = 8
_UNREADABLE = 'not a picture in a format that TensorFlow reads, or a corrupt one'


class NoPicture(Exception):
    """The file is not a picture that can be read; the message says why."""


def shown(path: str) -> str:
    """Returns a path to print in a line; in quotes and with escapes if it has control characters or is not UTF-8."""
    return path if path.isprintable() else repr(path)


class MemoryBudget:
    """An amount of memory that several threads share.

    Args:
      size: the amount in bytes.
    """

    def __init__(self, size: int):
        self._free = size
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Context in which `size` bytes are reserved; waits until that many are free."""
        with self._changed:
            self._changed.wait_for(lambda: size <= self._free)
            self._free -= size
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()


# (a form, what an argument of this form is that names no file).
_NO_FILES = ((r'\w+://.*', 'a URL; download it and give the file'), ('-?', 'not the name of a file; give one'),
             (r'.*[*?[].*', 'a pattern that no file has; give the names of files'))


class File(NamedTuple):
    """A file that is being read.

    Attributes:
      path: of the file.
      status: what the operating system says of it.
      width, height: of the picture as it is stored, in pixels.
      orientation: as `headers.orientation` returns it.
      contents: all its bytes.
    """
    path: str
    status: os.stat_result
    width: int
    height: int
    orientation: int
    contents: bytes


class Reader:
    """Reads picture files, and makes of each what a subclass says. Several threads may call it.

    They share a memory budget.
    """

    def __init__(self):
        self._memory = MemoryBudget(_MEMORY)

    def make(self, file: File) -> Any:
        """Returns what is made of a file; may raise a NoPicture or an error of TensorFlow."""
        raise NotImplementedError

    def __call__(self, path: str) -> Any:
        """Returns what is made of a file.

        Raises:
          NoPicture: the file cannot be read or decoded, or the memory is too little for it.
        """
        try:
            if os.path.exists(path) and not os.path.isfile(path):
                raise NoPicture('a folder; give the files in it' if os.path.isdir(path) else 'not a file')
            if not os.path.exists(path) and (kinds := [kind for form, kind in _NO_FILES if re.fullmatch(form, path)]):
                raise NoPicture(kinds[0])
            with open(path, 'rb') as stream:
                return self._read(path, stream)
        except OSError as error:
            raise NoPicture(error.strerror) from error
        except (MemoryError, tf.errors.ResourceExhaustedError) as error:
            raise NoPicture('too large for the memory that is free') from error
        except tf.errors.OpError as error:
            raise NoPicture(_UNREADABLE) from error

    def _read(self, path, stream):
        """Returns what is made of an open file; refuses what is too large by its header, before it takes memory."""
        status = os.fstat(stream.fileno())
        file_bytes = status.st_size
        if file_bytes > _MOST_BYTES:
            raise NoPicture(f'more than {_MOST_BYTES >> 20} MB')
        head = stream.read(_HEAD)
        if not head:
            raise NoPicture('an empty file')
        size = headers.size(head)
        if size is None:
            raise NoPicture(_UNREADABLE)
        width, height = size
        if width * height > _MOST_PIXELS:
            raise NoPicture(f'{width} x {height} pixels, more than {_MOST_PIXELS // 10 ** 6} million; make it smaller')
        with self._memory.reserve(width * height * _PIXEL_BYTES + 2 * file_bytes):
            contents = head + stream.read(file_bytes - len(head))
            return self.make(File(path, status, width, height, headers.orientation(head), contents))

    def try_each(self, paths: Sequence[str], progress: bool = False) -> list:
        """Returns for each file what a call returns, or the NoPicture that it raises.

        Args:
          paths: the files.
          progress: whether to show a progress bar if standard output is a terminal.
        """
        def attempt(path):
            try:
                return self(path)
            except NoPicture as error:
                return error
        threads = min(os.cpu_count(), _MOST_THREADS)
        with quiet_stderr(_LIBJPEG), multiprocessing.pool.ThreadPool(threads) as pool:
            attempts = pool.imap(attempt, paths)
            return list(progress_bar(attempts, total=len(paths), unit='file', leave=False) if progress else attempts)


class Decoder(Reader):
    """Decodes picture files on the CPU: a call returns the centre square of a picture, uint8 [size, size, 3].

    Of an animation it is the first frame's. A JPEG is turned and mirrored as its EXIF orientation says.

    Args:
      size: height and width in pixels of the images that it makes.
      centre: the side of the square that they show, as a fraction of the shorter side of the picture.
    """

    def __init__(self, size: int = SIZE, centre: float = 1.0):
        super().__init__()
        with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
            self._contents = tf.placeholder(tf.string, [])
            self._pixels = tf.io.decode_image(self._contents, channels=0, expand_animations=False)
            self._orientation = tf.placeholder(tf.int32, [])
            self._image = as_bytes(upright(on_white(_square(self._pixels, centre), size), self._orientation))
        self._session = tf.Session(graph=graph, config=tf.ConfigProto(device_count={'GPU': 0}))

    def make(self, file):
        return self._session.run(self._image, {self._orientation: file.orientation, **self._feed_dict(file.contents)})

    def _feed_dict(self, contents):
        """Returns what to feed to the graph for a file: its contents, or the pixels of a BMP."""
        if contents.startswith(b'BM'):
            try:
                return {self._pixels: bmp.decode(contents)}
            except ValueError as error:
                raise NoPicture(str(error)) from error
        return {self._contents: headers.first_frame(contents)}


def _square(pixels, fraction):
    """Returns the square in the centre of pixels [height, width, channels]; `fraction` is that of `centre_boxes`."""
    top, left, bottom, right = tf.unstack(centre_boxes(tf.shape(pixels)[None, :2], fraction)[0])
    return pixels[top:bottom + 1, left:right + 1]


def on_white(pixels: tf.Tensor, size: int) -> tf.Tensor:
    """Returns pixels resized to float32 [size, size, 3], where transparent ones are on a white ground.

    A photo takes four times as much memory in floats. So only pictures with an alpha channel are converted
    before they are resized, one colour after the other.

    Args:
      pixels: uint8 [height, width, 1 to 4 channels].
      size: height and width in pixels.
    """
    channels = tf.shape(pixels)[-1]

    def opaque():
        alpha = tf.cast(pixels[..., -1:], tf.float32) / 255
        white = 255 * (1 - alpha)
        colours = tf.map_fn(
            lambda k: resized((tf.cast(pixels[..., k:k + 1], tf.float32) * alpha + white)[None], size)[0, ..., 0],
            tf.range(channels - 1), fn_output_signature=tf.float32, parallel_iterations=1)
        return tf.transpose(colours, [1, 2, 0])
    has_alpha = tf.equal(channels % 2, 0)  # grey and alpha, or colours and alpha
    image = tf.cond(has_alpha, opaque, lambda: resized(pixels[None], size)[0])
    image = tf.cond(channels < 3, lambda: tf.repeat(image, 3, -1), lambda: image)
    return tf.ensure_shape(image, [size, size, 3])


def upright(pixels: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Returns pixels turned and mirrored as they are to be shown.

    Args:
      pixels: float32 [height, width, channels]. (On some CPUs oneDNN cannot transpose bytes, and prints a line about
        it.)
      orientation: int32 scalar from 1 to 8, as `headers.orientation` returns it.

    Returns:
      float32 [height, width, channels], or [width, height, channels] for an orientation from 5.
    """
    pixels = tf.cond(orientation >= headers.TRANSPOSED, lambda: tf.transpose(pixels, [1, 0, 2]), lambda: pixels)
    upside_down = tf.reduce_any(tf.equal(orientation, [3, 4, 7, 8]))
    right_to_left = tf.reduce_any(tf.equal(orientation, [2, 3, 6, 7]))
    flipped = tf.cond(upside_down, lambda: tf.reverse(pixels, [0]), lambda: pixels)
    return tf.cond(right_to_left, lambda: tf.reverse(flipped, [1]), lambda: flipped)
