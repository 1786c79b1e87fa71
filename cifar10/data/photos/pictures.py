"""Reads picture files of any size, and makes square images of them.

Pillow reads the headers of all files. TensorFlow decodes JPEG and PNG, as in the training on photos; Pillow decodes the
other formats.
"""
import contextlib
import itertools
import multiprocessing.pool
import os
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image, ImageOps, UnidentifiedImageError

from cifar10.base.activity import moved
from cifar10.base.console import progress_bar
from cifar10.base.graphs import lasting_cpu_session
from cifar10.base.startup import quiet_stderr
from cifar10.data.photos import decoding

_FORMATS = ('JPEG', 'PNG', 'GIF', 'WEBP', 'BMP', 'TIFF', 'AVIF')  # the last one from Pillow 11.3 on
# How files of formats begin that Pillow does not tell by their first bytes. (Pillow's AVIF may be missing.)
_OTHER_FORMATS = {
    'HEIC': rb'.{4}ftyp(hei|hev|mif|msf)', 'AVIF': rb'.{4}ftypavi', 'JPEG XL': rb'\xff\x0a|.{4}JXL ', 'PDF': rb'%PDF',
    'SVG': rb'\s*<(\?xml|svg)'}
# (a form, what an argument of this form is that names no file).
_NO_FILES = ((r'\w+://.*', 'a URL; download it and give the file'), ('-?', 'not the name of a file; give one'),
             (r'.*[*?[].*', 'a pattern that no file has; give the names of files'))
_ENCODED = (b'\xff\xd8\xff', b'\x89PNG\r\n\x1a\n')  # how JPEG and PNG begin, which TensorFlow decodes
_MOST_BYTES = 256 << 20  # of a file; a larger one is a mistake
_MOST_PIXELS = 128_000_000  # of a picture; cameras make 100 million
_PIXEL_BYTES = 24  # memory per pixel while a picture is decoded, at most (measured)
_MEMORY = _MOST_PIXELS * _PIXEL_BYTES + 2 * _MOST_BYTES  # for all pictures that are decoded at a time
_LIBJPEG = re.compile(rb'JPEG|JFIF|Insufficient memory')  # its complaints, which name no file
_MOST_THREADS = 8
_AT_A_TIME = 256  # files whose results wait in memory


class NoPicture(Exception):
    """The file is not a picture that can be read; the message says why."""


def shown(path: str) -> str:
    """Returns a path to print in a line; in quotes and with escapes if it has control characters or is not UTF-8."""
    return path if path.isprintable() else repr(path)


def formats() -> list[str]:
    """Returns the names of the formats that are read, as far as the installed Pillow has them."""
    Image.init()
    return [name for name in _FORMATS if name in Image.OPEN]


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


class Reader:
    """Reads picture files and calls `make` of a subclass with each. Several threads may call it.

    They share a memory budget.
    """

    def __init__(self):
        self._formats = formats()
        self._memory = MemoryBudget(_MEMORY)

    def make(self, path: str, status: os.stat_result, contents: bytes | None, pixels: np.ndarray | None) -> Any:
        """Makes a result from a picture; may raise a NoPicture or an error of TensorFlow.

        Args:
          path, status: of the file; the status is that of `os.stat`.
          contents: all bytes of the file; None if TensorFlow does not decode it.
          pixels: uint8 [height, width, 1, 3 or 4 channels], of a file that TensorFlow does not decode; or None.
        """
        raise NotImplementedError

    def __call__(self, path: str) -> Any:
        """Returns the result of `make` for a file.

        Raises:
          NoPicture: the file cannot be read or decoded, or the memory is too little for it.
        """
        if os.path.exists(path) and not os.path.isfile(path):
            raise NoPicture('a folder; give the files in it' if os.path.isdir(path) else 'not a file')
        if not os.path.exists(path) and (kinds := [kind for form, kind in _NO_FILES if re.fullmatch(form, path)]):
            raise NoPicture(kinds[0])
        try:
            with open(path, 'rb') as stream:
                return self._read(path, stream)
        except OSError as error:
            raise NoPicture(error.strerror) from error
        except (MemoryError, tf.errors.ResourceExhaustedError) as error:
            raise NoPicture('too large for the memory that is free') from error

    def _read(self, path, stream):
        """Returns the result for an open file; refuses one that is too large, before it takes memory."""
        status = os.fstat(stream.fileno())
        if status.st_size > _MOST_BYTES:
            raise NoPicture(f'more than {_MOST_BYTES >> 20} MB')
        head = stream.read(64)
        if not head:
            raise NoPicture('an empty file')
        too_large = f'more than {_MOST_PIXELS // 10 ** 6} million; make it smaller'
        with _plain_errors(_format_of(head)):
            try:
                image = Image.open(stream, formats=self._formats)
            except Image.DecompressionBombError as error:
                raise NoPicture(f'too many pixels, {too_large}') from error
        width, height = image.size
        if width * height > _MOST_PIXELS:
            raise NoPicture(f'{width} x {height} pixels, {too_large}')
        with self._memory.reserve(width * height * _PIXEL_BYTES + 2 * status.st_size), _plain_errors(image.format):
            if not head.startswith(_ENCODED):
                pixels = _pixels(image)
                image.close()  # its pixels go before the work on their copy takes memory
                return self.make(path, status, None, pixels)
            stream.seek(0)
            return self.make(path, status, stream.read(), None)

    def each(self, paths: Sequence[str], progress: bool = False) -> Iterator:
        """Yields for each file what a call returns, or the NoPicture that it raises.

        Args:
          paths: the files.
          progress: whether to show a progress bar if standard output is a terminal.
        """
        def attempt(path):
            moved()
            try:
                return self(path)
            except NoPicture as error:
                return error
        threads = min(os.cpu_count(), _MOST_THREADS)
        with (quiet_stderr(_LIBJPEG), warnings.catch_warnings(), multiprocessing.pool.ThreadPool(threads) as pool):
            warnings.filterwarnings('ignore', module=r'PIL\.')  # files that are odd, but can be read
            slabs = (paths[first:first + _AT_A_TIME] for first in range(0, len(paths), _AT_A_TIME))
            results = itertools.chain.from_iterable(pool.imap(attempt, slab) for slab in slabs)
            yield from progress_bar(results, total=len(paths), unit='file', leave=False) if progress else results


@contextlib.contextmanager
def _plain_errors(name):
    """Context that turns errors of a file into a NoPicture.

    Args:
      name: of the format of the file, as Pillow names it; None if it has none.
    """
    try:
        yield
    except (NoPicture, MemoryError, tf.errors.ResourceExhaustedError):
        raise
    except UnidentifiedImageError as error:
        if name is None:
            raise NoPicture('not a picture') from error
        if name not in formats():
            raise NoPicture(f'a picture in the format {name}, which is not read; save it as PNG or JPEG') from error
        raise NoPicture(f'a corrupt {name} file') from error
    except Exception as error:  # Pillow's readers raise errors of all kinds
        raise NoPicture(f'a corrupt {name} file') from error


def _format_of(head):
    """Returns the name of the format in which a file is, judging by its first bytes, or None."""
    for name, beginning in _OTHER_FORMATS.items():
        if re.match(beginning, head, re.DOTALL):
            return name
    for name in Image.ID:
        _, accept = Image.OPEN[name]
        if accept and accept(head[:16].ljust(16, b'\0')) is True:
            return name
    return None


def _pixels(image):
    """Decodes the first frame of a picture and turns it as it is shown: uint8 [height, width, 1 or 3 channels]."""
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith('I;16'):
        return (np.asarray(image) // 257).astype(np.uint8)[..., None]
    if image.mode in ('I', 'F'):
        raise NoPicture('a picture with 32 bits for each pixel and channel; save it as PNG or JPEG')
    has_alpha = 'transparency' in image.info or 'A' in image.getbands() or 'a' in image.getbands()
    return _on_white(np.asarray(image.convert('RGBA'))) if has_alpha else np.asarray(image.convert('RGB'))


def _on_white(pixels):
    """Returns pixels uint8 [height, width, 4] as red, green and blue on white, as `decoding` has those of a PNG.

    Row by row, because a large picture in wider integers takes several times its memory.
    """
    result = np.empty((*pixels.shape[:2], 3), np.uint8)
    for row, stored in zip(result, pixels):
        wide = stored.astype(np.uint16)  # 255 * 255 fits
        alpha = wide[:, 3:]
        row[:] = (wide[:, :3] * alpha + 255 * (255 - alpha) + 127) // 255
    return result


class Decoder(Reader):
    """Decodes picture files on the CPU: a call returns the image of a picture, uint8 [size, size, 3].

    Args:
      preparation: how the pictures are cropped and resized.
    """

    def __init__(self, preparation: decoding.Preparation):
        super().__init__()
        with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
            self._contents = tf.placeholder(tf.string, [])
            self._pixels = tf.placeholder(tf.uint8, [None, None, None])
            self._of_file = preparation.of_file(self._contents)
            self._of_pixels = preparation.of_pixels(self._pixels)
        self._session = lasting_cpu_session(graph)

    def make(self, path, status, contents, pixels):
        if pixels is None:
            return self._session.run(self._of_file, {self._contents: contents})
        return self._session.run(self._of_pixels, {self._pixels: pixels})
