"""Reads picture files of any size with Pillow, and prepares the pictures in them."""
import collections
import contextlib
import errno
import io
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image, ImageOps, __version__, features

from cifar10.base.activity import moved
from cifar10.base.console import progress_bar
from cifar10.base.files import named
from cifar10.base.graphs import lasting_cpu_session
from cifar10.data.photos.preparation import Preparation

# What the pixels of a file depend on; part of the names of prepared images.
DECODER = f"pillow{__version__}_libjpeg{features.version('libjpeg_turbo') or features.version('jpg')}"
_FORMATS = ('JPEG', 'PNG', 'GIF', 'WEBP', 'BMP', 'TIFF', 'AVIF')  # the last one from Pillow 11.3 on
_HEIC = re.compile(rb'(?s).{4}ftyp(hei|hev|mif1|msf1)')  # how photos of telephones begin that Pillow does not read
_MOST_PIXELS = 2 * Image.MAX_IMAGE_PIXELS  # of a picture; Pillow reads no larger one
_PIXEL_BYTES = 24  # memory per decoded pixel, at most (measured)
_STORED_PIXEL_BYTES = 6  # of a progressive JPEG, whose coefficients are all in memory
_LARGE = 100 << 20  # bytes of memory; a picture that takes more is decoded while no other of these is
_large_picture = threading.Lock()
_LEAST = 2  # pixels that a fraction must leave for each pixel of the result, so that little of what it smooths is seen
_ORIENTATION = 0x112  # the number of the tag in EXIF data
_MOST_THREADS = 8


class NoPicture(Exception):
    """The file is not a picture that can be read; the message says why."""


class _NotRead(NoPicture):
    """The file is a picture, but in a format that Pillow does not read."""


def shown(path: str) -> str:
    """Returns a path for a line of output; with quotes and escapes if it has control characters or is not UTF-8."""
    return path if path.isprintable() else repr(path)


@contextlib.contextmanager
def opened(file: str | bytes) -> Iterator[Image.Image]:
    """Context with a picture file, given its path or contents, of which only the header is read yet.

    Raises:
      NoPicture: there is no such file, it cannot be decoded, or there is too little memory for it; also where the
        context raises an error for these reasons.
      OSError: it cannot be read, which may be different later.
    """
    stream = io.BytesIO(file) if isinstance(file, bytes) else _stream(file)
    with named(file), stream, _opened(stream) as image:
        try:
            yield image
        except NoPicture:
            raise
        except (MemoryError, tf.errors.ResourceExhaustedError) as error:
            raise NoPicture('too large for the memory that is free') from error
        except Exception as error:  # Pillow's readers raise errors of all kinds
            if getattr(error, 'errno', None):  # the system's
                raise
            raise NoPicture(f'a corrupt {image.format} file') from error


def _stream(path):
    if os.path.exists(path) and not os.path.isfile(path):
        raise NoPicture('a folder' if os.path.isdir(path) else 'not a file')
    try:
        return open(path, 'rb')
    except ValueError as error:  # a path with a NUL character
        raise NoPicture(str(error)) from error
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):  # these mean a link that cannot be followed
            raise
        raise NoPicture(error.strerror) from error


def _opened(stream):
    """Returns the picture in an open file; refuses one that is too large, before it takes memory."""
    Image.init()
    formats = [name for name in _FORMATS if name in Image.OPEN]
    try:
        return Image.open(stream, formats=formats)
    except Image.DecompressionBombError as error:
        raise NoPicture(f'more than {_MOST_PIXELS / 10 ** 6:.0f} million pixels; make it smaller') from error
    except Exception as error:
        if getattr(error, 'errno', None):
            raise
        stream.seek(0)
        if _HEIC.match(stream.read(12)):
            raise _NotRead('a HEIC file; convert it to JPEG or PNG') from error
        raise NoPicture(f"not a picture in a supported format ({', '.join(formats)}), or corrupt") from error


def is_picture(path: str) -> bool:
    """Returns whether a file has the name of a picture in a supported format, or begins like one."""
    if Image.registered_extensions().get(os.path.splitext(path)[1].lower()) in _FORMATS:
        return True
    try:
        with opened(path):
            return True
    except _NotRead:
        return True
    except NoPicture:
        return False
    except OSError:  # nobody knows; whoever reads it will be told why not
        return True


def prepared(source: str | bytes | np.ndarray, preparation: Preparation) -> np.ndarray:
    """Returns a prepared picture, upright, uint8 [height, width, 3]. Several threads may call it.

    Args:
      source: a file, as `opened` takes and refuses it, or pixels uint8 [height, width, 3].
    """
    if isinstance(source, np.ndarray):
        return np.asarray(_resized(Image.fromarray(source), preparation))
    with opened(source) as image:
        width, height = image.size
        # Decodes a JPEG at a fraction of its size, in less time and memory; returns None for other formats.
        drafted = image.draft(None, [_LEAST * preparation.least_side(height, width)] * 2)
        divisor = width / drafted[1][2] if drafted else 1
        memory = width * height * (_PIXEL_BYTES / divisor ** 2 + _STORED_PIXEL_BYTES)
        with _large_picture if memory > _LARGE else contextlib.nullcontext():
            picture = _flattened(image)
            orientation = _orientation(image)
            kept = _resized(picture, preparation, (width, height) if drafted else picture.size, divisor)
    kept.info.clear()  # EXIF data that may make no sense
    kept.getexif()[_ORIENTATION] = orientation or 1
    return np.asarray(ImageOps.exif_transpose(kept))


def _resized(picture, preparation, size=None, divisor=1):
    """Returns the box that is kept, in its new size, of a picture that is decoded at 1 / `divisor` of `size`."""
    box, kept = preparation.window(*(size or picture.size))
    return picture.resize(kept, Image.Resampling.BILINEAR, [edge / divisor for edge in box])


class Reader:
    """Reads pictures to classify them: a call returns an image, uint8 [size, size, 3]. Several threads may call it."""

    def __init__(self, preparation: Preparation):
        self._preparation = preparation
        with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
            self._picture = tf.placeholder(tf.uint8, [None, None, 3])
            self._image = preparation.image(self._picture)
        self._session = lasting_cpu_session(graph)

    def __call__(self, source: str | bytes | np.ndarray) -> np.ndarray:
        """Returns the image of a picture; takes and refuses what `prepared` does."""
        return self._session.run(self._image, {self._picture: prepared(source, self._preparation)})


def each(read: Callable[[Any], Any], sources: Sequence, progress: bool = False) -> Iterator:
    """Yields for each source what `read` makes of it, or the NoPicture that it raises. Several threads call it.

    Only some results are in memory at a time.

    Args:
      sources: paths of files, or pictures.
      progress: whether to show a progress bar if standard output is a terminal.
    """
    def attempt(source):
        moved()
        try:
            return read(source)
        except NoPicture as error:
            return error
    threads = min(os.cpu_count(), _MOST_THREADS)

    def results():
        pending = collections.deque()
        with ThreadPoolExecutor(threads) as pool:
            for source in sources:
                pending.append(pool.submit(attempt, source))
                if len(pending) > 2 * threads:
                    yield pending.popleft().result()
            for result in pending:
                yield result.result()
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', module=r'PIL\.')  # files that are odd, but can be read
        yield from progress_bar(results(), total=len(sources), unit='image', leave=False) if progress else results()


def _flattened(image):
    """Decodes the first frame of a picture as it is stored, on white where it is transparent."""
    image.load()
    if image.mode.startswith('I;16') or image.mode == 'I' and image.format == 'PNG':  # 16 bits, some Pillows widen them
        return Image.fromarray((np.asarray(image) // 257).astype(np.uint8)).convert('RGB')
    if image.mode in ('I', 'F'):
        raise NoPicture('a picture with 32 bits for each pixel and channel; save it as PNG or JPEG')
    if 'transparency' in image.info or 'A' in image.getbands() or 'a' in image.getbands():
        image = image.convert('RGBA')
        image = Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image)
    return image.convert('RGB')


def _orientation(image):
    """Returns the orientation in the EXIF data of a picture, once it is decoded; None if they make no sense."""
    with contextlib.suppress(Exception):  # Pillow raises errors of all kinds for them
        return image.getexif().get(_ORIENTATION)
    return None
