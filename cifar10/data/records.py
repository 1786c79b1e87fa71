"""CIFAR binary records: find, download, verify, count; for CIFAR-10 and the built-in data set alike.

A record is one byte of label and 3,072 bytes of image: red, green and blue planes of 32x32
(https://www.cs.toronto.edu/~kriz/cifar.html).
"""
import dataclasses
import gzip
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable

import numpy as np

from cifar10.data import download, shapes
from cifar10.errors import UsageError, describe_os_error
from cifar10.registry import DATASETS

NUM_CLASSES = 10
SIZE = 32
RECORD_BYTES = 1 + 3 * SIZE * SIZE

TRAIN_FILES = tuple(f'data_batch_{i}.bin' for i in range(1, 6))
TEST_FILES = ('test_batch.bin',)
_EXTRAS = ('batches.meta.txt', 'readme.html')

_ARCHIVE = 'cifar-10-binary.tar.gz'
_ARCHIVE_FOLDER = 'cifar-10-batches-bin'
_URL = 'https://www.cs.toronto.edu/~kriz/' + _ARCHIVE
_ARCHIVE_BYTES = 170052171
_ARCHIVE_SHA256 = 'c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd'

_SHAPES_TRAIN, _SHAPES_TEST = 10000, 2000


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set in CIFAR-10's binary layout.

    Attributes:
      folder: its folder below data_dir, with the .bin files.
      make: function folder -> None that downloads or renders the files into a new folder, whole or not at all.
    """
    folder: str
    make: Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Records:
    """The verified files of one part of a data set.

    Attributes:
      dataset: its name.
      files: paths, in order.
      count: records in all of them.
    """
    dataset: str
    files: tuple[str, ...]
    count: int

    def planes(self, n: int) -> np.ndarray:
        """Returns the first images of the first file, at most n: uint8 [n, 3, 32, 32]."""
        rows = np.fromfile(self.files[0], np.uint8, n * RECORD_BYTES).reshape(-1, RECORD_BYTES)
        return rows[:, 1:].reshape(-1, 3, SIZE, SIZE)

    def __str__(self):
        return f'{self.dataset}, {self.count:,} images in {os.path.dirname(self.files[0])}'


def find(dataset: str, data_dir: str, names: tuple[str, ...] = TRAIN_FILES) -> Records:
    """Returns the Records of `names` (TRAIN_FILES or TEST_FILES), fetching or rendering them if need be.

    Args:
      dataset: 'cifar10' or 'shapes'.
      data_dir: holds the data set's folder of .bin files, or CIFAR-10's archive, or nothing.
      names: file names within the folder.

    Raises:
      UsageError: the data cannot be downloaded or written, or a file is missing or corrupt.
    """
    kind = DATASETS.load(dataset)
    folder = os.path.join(data_dir, kind.folder)
    parent, name = os.path.split(os.path.abspath(data_dir))
    if name == os.path.basename(folder) and os.path.isfile(os.path.join(data_dir, names[0])):
        raise UsageError(f'--data_dir={data_dir} holds the .bin files themselves; use --data_dir={parent}')
    if not os.path.isdir(folder):
        try:
            os.makedirs(data_dir, exist_ok=True)
            kind.make(folder)
        except OSError as error:
            raise UsageError(f'the data set cannot be put into --data_dir={data_dir}: '
                             f'{describe_os_error(error)}') from error
    files = tuple(os.path.join(folder, name) for name in names)
    return Records(dataset, files, sum(_verified_count(path) for path in files))


def _verified_count(path):
    """Returns how many records a file holds, after checking its length and its labels."""
    remedy = f'delete {os.path.dirname(path)} to have it made again'
    if not os.path.isfile(path):
        raise UsageError(f'{path} is missing; {remedy}')
    size = os.path.getsize(path)
    if size == 0 or size % RECORD_BYTES:
        raise UsageError(f'{path} holds {size} bytes, which is not a whole number of records of {RECORD_BYTES} '
                         f'bytes; {remedy}')
    labels = np.memmap(path, np.uint8, 'r', shape=(size // RECORD_BYTES, RECORD_BYTES))[:, 0]
    wrong = np.flatnonzero(labels >= NUM_CLASSES)
    if len(wrong):
        raise UsageError(f'{path} has label {labels[wrong[0]]} in record {wrong[0]}, where labels are 0 to '
                         f'{NUM_CLASSES - 1}; {remedy}')
    return len(labels)


class _NewFolder:
    """Context: a temporary folder beside `folder` that takes its name when all went well."""

    def __init__(self, folder):
        self._folder = folder

    def __enter__(self):
        parent, name = os.path.split(self._folder)
        self._temporary = tempfile.mkdtemp(prefix=f'.{name}.', dir=parent)
        return self._temporary

    def __exit__(self, kind, error, trace):
        try:
            if kind is None and not os.path.isdir(self._folder):  # another process may have been faster
                os.chmod(self._temporary, 0o755)
                os.rename(self._temporary, self._folder)
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)


def _fetch_cifar10(folder):
    archive = os.path.join(os.path.dirname(folder), _ARCHIVE)
    if os.path.isfile(archive):
        if os.path.getsize(archive) != _ARCHIVE_BYTES or download.sha256(archive) != _ARCHIVE_SHA256:
            print(f'warning: {archive} is not the published archive (its checksum differs); using it as it is')
        try:
            return _extract(archive, folder)
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            print(f'warning: {archive} cannot be read ({error}); replacing it')
    print(f'downloading {_URL}')
    try:
        download.fetch(_URL, archive, _ARCHIVE_BYTES, _ARCHIVE_SHA256)
    except download.DownloadError as error:
        raise UsageError(f'{error}; put {_ARCHIVE} into {os.path.dirname(folder)} by hand, or use --dataset=shapes, '
                         'which needs no network') from error
    _extract(archive, folder)


def _extract(archive, folder):
    expected = {f'{_ARCHIVE_FOLDER}/{name}' for name in TRAIN_FILES + TEST_FILES + _EXTRAS}
    with _NewFolder(folder) as temporary, gzip.open(archive) as stream, tarfile.open(fileobj=stream) as tar:
        for member in tar:
            if member.isfile() and member.name in expected:
                # Copied by name, with nothing of the member's own path, owner or mode. (`tar.extract` is safe only
                # with `filter=`, which Python 3.11.2, Debian 12's, does not have.)
                path = os.path.join(temporary, os.path.basename(member.name))
                with tar.extractfile(member) as source, open(path, 'wb') as copy:
                    shutil.copyfileobj(source, copy)
        while stream.read(1 << 20):  # the checksum of all that was read stands at the very end
            pass
        missing = [name for name in TRAIN_FILES + TEST_FILES if not os.path.isfile(os.path.join(temporary, name))]
        if missing:
            raise tarfile.ReadError(f'{_ARCHIVE_FOLDER}/{missing[0]} is not in it')


def _render_shapes(folder):
    with _NewFolder(folder) as temporary:
        for names, count, seed in ((TRAIN_FILES, _SHAPES_TRAIN, 1), (TEST_FILES, _SHAPES_TEST, 2)):
            labels, images = shapes.render(count, seed)
            records = np.concatenate([labels[:, None], images.reshape(count, -1)], axis=1)
            for name, part in zip(names, np.split(records, len(names))):
                part.tofile(os.path.join(temporary, name))
        with open(os.path.join(temporary, _EXTRAS[0]), 'w') as meta:
            meta.write('\n'.join(shapes.CLASSES) + '\n')


CIFAR10 = Dataset(_ARCHIVE_FOLDER, _fetch_cifar10)
SHAPES = Dataset('shapes-bin', _render_shapes)
