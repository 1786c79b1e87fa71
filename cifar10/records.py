"""CIFAR binary records: find, download, verify, count; for CIFAR-10 and the built-in data set alike.

Knows files and bytes. How records become batches is `inputs`' business; nothing here uses TensorFlow.
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

import numpy as np

from cifar10 import download, shapes
from cifar10.console import UsageError, describe_os_error

NUM_CLASSES = 10
SIZE = 32
RECORD_BYTES = 1 + 3 * SIZE * SIZE

TRAIN_FILES = tuple('data_batch_%d.bin' % i for i in range(1, 6))
TEST_FILES = ('test_batch.bin',)
_EXTRAS = ('batches.meta.txt', 'readme.html')

_ARCHIVE = 'cifar-10-binary.tar.gz'
_ARCHIVE_FOLDER = 'cifar-10-batches-bin'
_URL = 'https://www.cs.toronto.edu/~kriz/' + _ARCHIVE
_ARCHIVE_BYTES = 170052171
_ARCHIVE_SHA256 = 'c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd'

_SHAPES_FOLDER = 'shapes-bin'
_SHAPES_TRAIN, _SHAPES_TEST = 10000, 2000


@dataclasses.dataclass(frozen=True)
class Records:
    """The verified files of one part of a data set.

    Attributes:
      dataset: its name.
      files: paths, in order.
      count: records in all of them.
    """
    dataset: str
    files: tuple
    count: int

    def __str__(self):
        return '%s, %s images in %s' % (self.dataset, format(self.count, ','), os.path.dirname(self.files[0]))


def find(dataset, data_dir, names=TRAIN_FILES):
    """Returns the Records of `names` (TRAIN_FILES or TEST_FILES), fetching or rendering them if need be.

    Args:
      dataset: 'cifar10' or 'shapes'.
      data_dir: holds the data set's folder of .bin files, or CIFAR-10's archive, or nothing.
      names: file names within the folder.

    Raises:
      UsageError: the data cannot be had, or a file is missing or damaged.
    """
    folder = os.path.join(data_dir, _ARCHIVE_FOLDER if dataset == 'cifar10' else _SHAPES_FOLDER)
    parent, name = os.path.split(os.path.abspath(data_dir))
    if name == os.path.basename(folder) and os.path.isfile(os.path.join(data_dir, names[0])):
        raise UsageError('--data_dir=%s holds the .bin files themselves; use --data_dir=%s' % (data_dir, parent))
    if not os.path.isdir(folder):
        try:
            os.makedirs(data_dir, exist_ok=True)
            (_fetch_cifar10 if dataset == 'cifar10' else _render_shapes)(folder)
        except OSError as error:
            raise UsageError('cannot put the data set into --data_dir=%s: %s'
                             % (data_dir, describe_os_error(error))) from error
    files = tuple(os.path.join(folder, name) for name in names)
    return Records(dataset, files, sum(_verified_count(path) for path in files))


def _verified_count(path):
    """Returns how many records a file holds, having looked at its length and its labels."""
    remedy = 'delete %s to have it made anew' % os.path.dirname(path)
    if not os.path.isfile(path):
        raise UsageError('%s is missing; %s' % (path, remedy))
    size = os.path.getsize(path)
    if size == 0 or size % RECORD_BYTES:
        raise UsageError('%s holds %d bytes, which is not a whole number of records of %d bytes; %s'
                         % (path, size, RECORD_BYTES, remedy))
    labels = np.memmap(path, np.uint8, 'r', shape=(size // RECORD_BYTES, RECORD_BYTES))[:, 0]
    wrong = np.flatnonzero(labels >= NUM_CLASSES)
    if len(wrong):
        raise UsageError('%s has label %d in record %d, where labels are 0 to %d; %s'
                         % (path, labels[wrong[0]], wrong[0], NUM_CLASSES - 1, remedy))
    return len(labels)


class _NewFolder:
    """Context: a temporary folder beside `folder` that takes its name when all went well."""

    def __init__(self, folder):
        self._folder = folder

    def __enter__(self):
        parent, name = os.path.split(self._folder)
        self._temporary = tempfile.mkdtemp(prefix='.%s.' % name, dir=parent)
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
            print('warning: %s is not the published archive (its checksum differs); using it as it is' % archive)
        try:
            return _extract(archive, folder)
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            print('warning: %s cannot be read (%s); replacing it' % (archive, error))
    print('downloading %s' % _URL)
    try:
        download.fetch(_URL, archive, _ARCHIVE_BYTES, _ARCHIVE_SHA256)
    except download.DownloadError as error:
        raise UsageError('%s; put %s into %s by hand, or use --dataset=shapes, which needs no network'
                         % (error, _ARCHIVE, os.path.dirname(folder))) from error
    _extract(archive, folder)


def _extract(archive, folder):
    expected = {'%s/%s' % (_ARCHIVE_FOLDER, name) for name in TRAIN_FILES + TEST_FILES + _EXTRAS}
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
            raise tarfile.ReadError('%s/%s is not in it' % (_ARCHIVE_FOLDER, missing[0]))


def _render_shapes(folder):
    with _NewFolder(folder) as temporary:
        for names, count, seed in ((TRAIN_FILES, _SHAPES_TRAIN, 1), (TEST_FILES, _SHAPES_TEST, 2)):
            labels, images = shapes.render(count, seed)
            records = np.concatenate([labels[:, None], images.reshape(count, -1)], axis=1)
            for name, part in zip(names, np.split(records, len(names))):
                part.tofile(os.path.join(temporary, name))
        with open(os.path.join(temporary, _EXTRAS[0]), 'w') as meta:
            meta.write('\n'.join(shapes.CLASSES) + '\n')
