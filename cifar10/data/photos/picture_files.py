"""Reads picture files of any size with Pillow, and prepares the pictures."""
import collections
import contextlib
import errno
import io
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image, ImageOps, __version__, features

from cifar10.base.activity import moved
from cifar10.base.console import progress_bar
from cifar10.base.files import named
from cifar10.base.graphs import lasting_cpu_session
from cifar10.data.photos.preparation import Preparation

# Decoded pixels depend on these versions; part of the names of prepared images.
DECODER = f"pillow{__version__}_libjpeg{features.version('libjpeg_turbo') or features.version('jpg')}"
_FORMATS = ('JPEG', 'PNG', 'GIF', 'WEBP', 'BMP', 'TIFF', 'AVIF')  # Pillow reads AVIF since 11.3
_HEIC = re.compile(rb'(?s).{4}ftyp(hei|hev|mif1|msf1)')  # the first bytes of phone photos that Pillow does not read
_PIXEL_BYTES = 24  # maximum memory per decoded pixel (measured)
_STORED_PIXEL_BYTES = 6  # memory per pixel of a progressive JPEG, for its coefficients
_LARGE = 100 << 20  # bytes of memory; pictures that need more are decoded one at a time
_large_picture = threading.Lock()
_DRAFT_FACTOR = 2  # minimum pixels of a reduced JPEG per pixel of the result, which hides its smoothing
_ORIENTATION = 0x112  # the EXIF tag
_MAX_THREADS = 8


class NoPicture(Exception):
    """The file is not a readable picture; the message has the reason."""


class _NotRead(NoPicture):
    """The file is a picture, but Pillow does not support its format."""


def shown(path: str) -> str:
    """Returns a path for printing; with quotes and escapes if it has control characters or is not UTF-8."""
    return path if path.isprintable() else repr(path)


@contextlib.contextmanager
def opened(file: str | bytes) -> Iterator[Image.Image]:
    """Context with a picture, given its path or contents; reads only the header.

    Raises:
      NoPicture: the file does not exist, cannot be decoded, or needs too much memory; errors in the context are
        converted, too.
      OSError: the file cannot be read; a later attempt may succeed.
    """
    stream = io.BytesIO(file) if isinstance(file, bytes) else _stream(file)
    with named(file if isinstance(file, str) else ''), stream, _opened(stream) as image:
        try:
            yield image
        except NoPicture:
            raise
        except (MemoryError, tf.errors.ResourceExhaustedError) as error:
            raise NoPicture('too large for the free memory') from error
        except Exception as error:  # Pillow's readers raise errors of any type
            if getattr(error, 'errno', None):  # an error of the operating system
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
        if error.errno not in (errno.ENOENT, errno.ELOOP):  # these are broken links
            raise
        raise NoPicture(error.strerror) from error


def _opened(stream):
    """Returns the picture in an open file; refuses a picture that is too large before decoding it."""
    Image.init()
    formats = [name for name in _FORMATS if name in Image.OPEN]
    try:
        return Image.open(stream, formats=formats)
    except Image.DecompressionBombError as error:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise NoPicture(f'more than {limit / 10 ** 6:.0f} million pixels; make it smaller') from error
    except Exception as error:
        if getattr(error, 'errno', None):
            raise
        stream.seek(0)
        if _HEIC.match(stream.read(12)):
            raise _NotRead('a HEIC file; convert it to JPEG or PNG') from error
        raise NoPicture(f"not a picture in a supported format ({', '.join(formats)}), or corrupt") from error


def has_picture_name(path: str) -> bool:
    """Returns whether a file's name ends like a picture's."""
    return Image.registered_extensions().get(os.path.splitext(path)[1].lower()) in _FORMATS


def is_picture(path: str) -> bool:
    """Returns whether a file is a picture, judged by its name or header."""
    if has_picture_name(path):
        return True
    try:
        with opened(path):
            return True
    except _NotRead:
        return True
    except NoPicture:
        return False
    except OSError:  # unknown; reading it will report the error
        return True


def prepared(source: str | bytes | np.ndarray, preparation: Preparation) -> np.ndarray:
    """Returns a prepared picture, upright, uint8 [height, width, 3]. Several threads may call it.

    Args:
      source: a file as for `opened`, which may raise an error, or pixels uint8 [height, width, 3].
    """
    if isinstance(source, np.ndarray):
        return np.asarray(_resized(Image.fromarray(source), preparation))
    with opened(source) as image:
        width, height = image.size
        # Decodes a JPEG at a fraction of its size, in less time and memory; returns None for other formats.
        side = _DRAFT_FACTOR * preparation.least_side(height, width)
        drafted = image.draft(None, (side, side))
        divisor = width / drafted[1][2] if drafted else 1
        memory = width * height * (_PIXEL_BYTES / divisor ** 2 + _STORED_PIXEL_BYTES)
        with _large_picture if memory > _LARGE else contextlib.nullcontext():
            picture = _flattened(image)
            orientation = _orientation(image)
            kept = _resized(picture, preparation, (width, height) if drafted else picture.size, divisor)
    kept.info.clear()  # EXIF data that may be invalid
    kept.getexif()[_ORIENTATION] = orientation or 1
    return np.asarray(ImageOps.exif_transpose(kept))


def _resized(picture, preparation, size=None, divisor=1):
    """Resizes a picture that was decoded at 1 / `divisor` of `size`."""
    width, height = size or picture.size
    new_width, new_height = preparation.new_size(width, height)
    # In two calls, because the order of rows and columns in one call depends on Pillow's version.
    rows = picture.resize((new_width, picture.height), Image.Resampling.BILINEAR,
                          (0, 0, width / divisor, picture.height))
    return rows.resize((new_width, new_height), Image.Resampling.BILINEAR, (0, 0, new_width, height / divisor))


class Reader:
    """Reads pictures to classify them: a call returns an image, uint8 [size, size, 3]. Several threads may call it."""

    def __init__(self, preparation: Preparation):
        self._preparation = preparation
        with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
            self._picture = tf.placeholder(tf.uint8, [None, None, 3])
            self._image = preparation.image(self._picture)
        self._session = lasting_cpu_session(graph)

    def __call__(self, source: str | bytes | np.ndarray) -> np.ndarray:
        """Returns the image of a picture; `prepared` describes the source and the errors."""
        return self._session.run(self._image, {self._picture: prepared(source, self._preparation)})


def each(read: Callable[[Any], Any], sources: Sequence | np.ndarray, progress: bool = False) -> Iterator:
    """Yields the result of `read` for each source, or the NoPicture that it raises.

    Several threads call `read`. Only some results are in memory at a time.

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
    threads = min(os.cpu_count() or 1, _MAX_THREADS)

    def results():
        pending: collections.deque[Future] = collections.deque()
        with ThreadPoolExecutor(threads) as pool:
            for source in sources:
                pending.append(pool.submit(attempt, source))
                if len(pending) > 2 * threads:
                    yield pending.popleft().result()
            for result in pending:
                yield result.result()
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', module=r'PIL\.')  # about unusual but readable files
        yield from progress_bar(results(), total=len(sources), unit='image', leave=False) if progress else results()


def _flattened(image):
    """Decodes the first frame of a picture, without rotation, on a white background."""
    image.load()
    # 16 bits per channel; some versions of Pillow widen them to 32.
    if image.mode.startswith('I;16') or image.mode == 'I' and image.format == 'PNG':
        return Image.fromarray((np.asarray(image) // 257).astype(np.uint8)).convert('RGB')
    if image.mode in ('I', 'F'):
        raise NoPicture('a picture with 32 bits per channel; save it as PNG or JPEG')
    if 'transparency' in image.info or 'A' in image.getbands() or 'a' in image.getbands():
        image = image.convert('RGBA')
        image = Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image)
    return image.convert('RGB')


def _orientation(image):
    """Returns the orientation in the EXIF data of a decoded picture; None if they are invalid."""
    with contextlib.suppress(Exception):  # Pillow raises errors of any type for invalid data
        return image.getexif().get(_ORIENTATION)
    return None
