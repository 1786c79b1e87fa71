"""Data sets in CIFAR's binary layout: makes their files if necessary, and verifies them.

A record is one or two bytes of labels and an image: red, green and blue planes, of 32x32 pixels in CIFAR
(https://www.cs.toronto.edu/~kriz/cifar.html). Each data set has a module that makes its files.
"""
import dataclasses
import errno
import functools
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from cifar10.base.console import Line, say, say_all
from cifar10.base.errors import UsageError, describe_os_error
from cifar10.base.files import making, named
from cifar10.base.registry import DATASETS
from cifar10.data import SIZE

ARRAYS = '.npz'  # the suffix of a file with a user's images as arrays
MOST_CLASSES = 256  # a record's label is a byte
LARGEST = 64  # maximum height and width for converting a user's images to records, which are all held in memory

# The files of CIFAR-10, and of rendered and converted data sets.
TRAIN_FILES = tuple(f'data_batch_{i}.bin' for i in range(1, 6))
TEST_FILES = ('test_batch.bin',)
CLASSES_FILE = 'batches.meta.txt'
_SOURCES = '.sources'  # suffix of the file with the sources of a file's records, separated by zero bytes

_MAX_SHOWN = 3  # pairs of equal images, in a line
TEXT: dict[str, Any] = dict(encoding='utf-8', errors='surrogateescape')  # Python's encoding of file names

# The parts of a data set.
TRAIN = 'train'
TEST = 'test'
_FILES = {TRAIN: TRAIN_FILES, TEST: TEST_FILES}
ALL = 1.0  # the fraction for testing if no run trains on the images, so one image of one class is enough


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set in CIFAR's binary layout; subclasses make its files.

    Attributes:
      folder: the folder of its files, below data_dir.
      classes: the names of its classes, in the order of their labels; empty if only the files have them.
      counts: number of images of each part; empty if only the files have it.
      files: the names of the files of each part.
      label_bytes: number of label bytes in a record; the last is used.
      size: height and width of the images in the files.
      archive: the archive that `make` downloads unless it is in data_dir, with its `name` and its `size` in bytes; None
        if there is none.
    """
    folder: str
    classes: tuple[str, ...] = ()
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    files: dict = dataclasses.field(default_factory=lambda: _FILES)
    label_bytes: int = 1
    size: int = SIZE
    archive: Any = None

    def configured(self, test_fraction: float | None, image_size: int) -> 'Dataset':
        """Returns the data set with this test fraction and image size; built-in data sets return themselves."""
        del test_fraction, image_size
        return self

    def expected(self) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
        """Returns (class names, labels of each part in any order), which the files from `make` will have.

        Raises:
          UsageError: `make` would fail.
        """
        return self.classes, {part: np.arange(count) % len(self.classes) for part, count in self.counts.items()}

    def make(self, folder: str) -> None:
        """Downloads, renders or converts the files into a new folder, which appears only when it is complete."""
        raise NotImplementedError

    def images(self, name: str, folder: str, part: str, classes: tuple[str, ...], image_size: int) -> 'ImageFiles':
        """Returns the ImageFiles of a part in `folder`, which may not exist yet; they have no counts."""
        paths = tuple(os.path.join(folder, file) for file in self.files[part])
        return ImageFiles(name, paths, classes, label_bytes=self.label_bytes, stored_size=self.size,
                       size=image_size)


@dataclasses.dataclass(frozen=True)
class ImageFiles:
    """The files of one part of a data set.

    Attributes:
      dataset: the name of the data set.
      files: the paths of the files, in order.
      classes: the names of the classes, in the order of their labels.
      count: number of records in all files; 0 before they are `verified`.
      class_counts: number of records of each class; empty before the files are `verified`.
      digest: the SHA-256 of the concatenated files, in hexadecimal digits; '' before they are `verified`.
      label_bytes: number of label bytes in a record; the last is used.
      stored_size: height and width in pixels of the images in the files.
      size: height and width in pixels of the images from the input pipeline.
    """
    dataset: str
    files: tuple[str, ...]
    classes: tuple[str, ...]
    count: int = 0
    class_counts: tuple[int, ...] = ()
    digest: str = ''
    label_bytes: int = 1
    stored_size: int = SIZE
    size: int = SIZE

    @property
    def folder(self) -> str:
        return os.path.dirname(self.files[0])

    @property
    def record_bytes(self) -> int:
        return self.label_bytes + 3 * self.stored_size ** 2

    @property
    def kept(self) -> list[str]:
        """The files that a resumed run needs."""
        return [entry.path for entry in os.scandir(self.folder)]

    def verified(self) -> 'ImageFiles':
        """Returns these ImageFiles with counts and digest; raises a UsageError if a file is not valid."""
        digest = hashlib.sha256()
        labels = np.concatenate([self._labels(path, digest) for path in self.files])
        return self.counted(labels, digest.hexdigest())

    def counted(self, labels: np.ndarray, digest: str = '') -> 'ImageFiles':
        """Returns these ImageFiles with counts and digest, given all labels."""
        counts = np.bincount(labels, minlength=len(self.classes))
        return dataclasses.replace(self, count=len(labels), class_counts=tuple(map(int, counts)), digest=digest)

    def _labels(self, path, digest):
        remedy = f'move {self.folder} away and start again'
        try:
            with named(path), open(path, 'rb') as stream:
                content = stream.read()
        except OSError as error:
            raise UsageError(f'{describe_os_error(error)}; make it readable, or {remedy}') from error
        if not content or len(content) % self.record_bytes:
            raise UsageError(f'{path} has {len(content)} bytes, not a multiple of the record size of '
                             f'{self.record_bytes} bytes; {remedy}')
        digest.update(content)
        labels = np.frombuffer(content, np.uint8)[self.label_bytes - 1::self.record_bytes]
        wrong = np.flatnonzero(labels >= len(self.classes))
        if len(wrong):
            raise UsageError(f'record {wrong[0]} of {path} has label {labels[wrong[0]]}, but labels must be 0 to '
                             f'{len(self.classes) - 1}; {remedy}')
        return labels.copy()  # frees the images

    def examples(self) -> Iterator[tuple[int, str | bytes]]:
        """Yields the label of each example and a digest of its image, in order."""
        for path in self.files:
            with open(path, 'rb') as stream:
                while row := stream.read(self.record_bytes):
                    yield row[self.label_bytes - 1], hashlib.sha256(row[self.label_bytes:]).digest()

    def name_of(self, example: int) -> str:
        """Returns the source of an example: its file, or its array and index."""
        files = iter(self.files)
        while example >= (count := os.path.getsize(path := next(files)) // self.record_bytes):
            example -= count
        if not os.path.exists(path + _SOURCES):
            return f'{path}, record {example}'
        with open(path + _SOURCES, 'rb') as stream:
            source = os.fsdecode(stream.read().split(b'\0')[example])
        return source if self.dataset.endswith(ARRAYS) else os.path.join(self.dataset, source)

    def images(self, n: int) -> np.ndarray:
        """Returns the first images of the first file, at most n: uint8 [n, stored_size, stored_size, 3]."""
        rows = np.fromfile(self.files[0], np.uint8, n * self.record_bytes).reshape(-1, self.record_bytes)
        return rows[:, self.label_bytes:].reshape(-1, 3, self.stored_size, self.stored_size).transpose(0, 2, 3, 1)

    def __str__(self):
        resized = '' if self.size == self.stored_size else f', resized to {self.size}x{self.size}'
        return (f'{self.dataset}, {self.count:,} images of {self.stored_size}x{self.stored_size} {self._where}'
                f'{resized}')

    @property
    def _where(self):
        """A phrase with the folder, which may not exist yet in --check."""
        return f"{'in' if os.path.isdir(self.folder) else 'to be prepared in'} {self.folder}"


def find(settings: Any, run_folder: str | None = None) -> 'Found':
    """Finds the images of a run; raises a UsageError if the images or data_dir are not usable.

    Args:
      settings: the run's `DataSettings`.
      run_folder: the name of a resumed run's folder of images, which it keeps using if the user's images change. None
        for a new run.
    """
    return _find(settings.dataset, settings.data_dir, settings.test_fraction, settings.image_size, run_folder)


def find_other(settings: Any, name: str) -> 'Found':
    """Finds a second data set at the run's image size; without a test part, all of its images are for testing.

    Args:
      settings: the run's `DataSettings`.
      name: the name of the data set.
    """
    size = stored_size(settings.dataset, settings.image_size) or settings.image_size
    return _find(name, settings.data_dir, ALL, size)._replace(image_size=settings.image_size)


def _find(name, data_dir, test_fraction, image_size, run_folder=None):
    refuse_among_images(data_dir, '--data_dir', name)
    dataset = DATASETS.load(name).configured(test_fraction, image_size)
    folder = os.path.join(data_dir, dataset.folder)
    in_folder = functools.partial(Found, name, data_dir, image_size, dataset)
    parent, base = os.path.split(os.path.abspath(data_dir))
    if base == os.path.basename(folder) and os.path.isfile(os.path.join(data_dir, dataset.files[TRAIN][0])):
        raise UsageError(f'--data_dir={data_dir} is the folder of the .bin files; use --data_dir={parent}')
    why, kept = 'files were added, removed or changed since the run began', ''
    if run_folder:
        if in_folder(folder).has_files_of(run_folder):
            why = f"the decoder is now {os.path.basename(folder).partition('_')[2]}"
        kept = os.path.join(os.path.dirname(folder), run_folder)
    if kept == folder or not os.path.isdir(kept):
        return in_folder(folder)
    return in_folder(kept, Line('changed', f'{name}: {why}; this run keeps using its images in {kept}, but new runs '
                                           'use the current files', note=True))


class Found(NamedTuple):
    """A data set and the folder of its files, as it was when it was found.

    Attributes:
      name, data_dir, image_size: as for `prepare`.
      dataset: the Dataset, which makes the files.
      folder: the folder of the files; it may not exist yet.
      line: a line to print about the folder, or None.
    """
    name: str
    data_dir: str
    image_size: int
    dataset: Dataset
    folder: str
    line: Line | None = None

    def has_files_of(self, folder: str | None) -> bool:
        """Returns whether a folder, given by name, was made from the same files, with any decoder."""
        return (folder or '').partition('_')[0] == os.path.basename(self.folder).partition('_')[0]

    def images(self, part: str = TRAIN) -> ImageFiles:
        """Returns the ImageFiles of a part; downloads, renders or converts the data set if its files do not exist."""
        if not os.path.isdir(self.folder):
            _make(self.dataset, self.name, self.folder, self.image_size, f'--data_dir={self.data_dir}')
        else:
            say_all([self.line] if self.line and part == TRAIN else ())
        classes = self.dataset.classes or read_classes(self.folder)
        return self._files(part, classes).verified()

    def expected(self) -> 'Expected | None':
        """Returns the expected result of `images`, or None if the files exist.

        Raises:
          UsageError: the files cannot be made.
        """
        if os.path.isdir(self.folder):
            return None
        dataset = self.dataset
        classes, labels = dataset.expected()
        parts = {part: self._files(part, classes).counted(labels[part]) for part in dataset.files}
        how = 'preparing it'
        if archive := dataset.archive:
            is_there = os.path.isfile(os.path.join(self.data_dir, archive.name))
            how = 'unpacking it' if is_there else f'downloading {archive.size / 1e6:.0f} MB'
        return Expected(parts, how)

    def _files(self, part, classes):
        return self.dataset.images(self.name, self.folder, part, classes, self.image_size)


def refuse_among_images(path: str, flag: str, dataset: str) -> None:
    """Raises a UsageError if a directory is in a user's folder of images, where it would be a class."""
    if not DATASETS.is_own(dataset):
        return
    parts = [os.path.join(dataset, part) for part in (TRAIN, TEST)]
    folders = [dataset] if not any(map(os.path.isdir, parts)) else parts
    for folder in map(os.path.realpath, folders):
        if os.path.commonpath([folder, os.path.realpath(path)]) == folder:
            raise UsageError(f'{flag}={path} is in the folder of the images, {folder}; use a directory outside it '
                             '(move existing files)')


def prepare(name: str, data_dir: str, part: str = TRAIN, test_fraction: float | None = None,
            image_size: int = SIZE) -> ImageFiles:
    """Returns the ImageFiles of a part; downloads, renders or converts the data set first if its files do not exist.

    Args:
      name: a name in `registry.DATASETS`, or a folder of images.
      data_dir: the directory for the data set's folder and archive.
      part: TRAIN or TEST.
      test_fraction: the fraction of the images to use for testing; required for a folder of images without train/ and
        test/, ignored for other data sets.
      image_size: height and width in pixels of the images from the input pipeline. A folder of images is converted to
        this size; the input pipeline resizes other data sets.
    """
    return _find(name, data_dir, test_fraction, image_size).images(part)


def _make(dataset, name, folder, image_size, flag):
    try:
        dataset.expected()  # raises an error early
        with making(folder):
            if not os.path.isdir(folder):
                dataset.make(folder)
                if DATASETS.is_own(name):
                    classes = read_classes(folder)
                    warn_of_equal(*(dataset.images(name, folder, part, classes, image_size) for part in (TRAIN, TEST)))
    except OSError as error:
        # The message of a full disk includes a remedy.
        remedy = '' if error.errno in (errno.ENOSPC, errno.EDQUOT) else '; fix this, or use another directory'
        raise UsageError(f'the data set cannot be made for {flag}: {describe_os_error(error)}{remedy}') from error


def warn_of_equal(train: ImageFiles, test: ImageFiles) -> None:
    """Warns if test images equal training images, and if equal images have different classes."""
    first, shared, ambiguous = dict[str | bytes, tuple](), dict[int, tuple](), dict[str | bytes, tuple]()
    for part in (train, test):
        for i, (label, digest) in enumerate(part.examples()):
            name = part.classes[label]
            first_part, first_i, first_name = first.setdefault(digest, (part, i, name))
            pair = (part, i), (first_part, first_i)
            if part is not first_part:
                shared[i] = pair
            if name != first_name:
                ambiguous.setdefault(digest, pair)
    for equal, what in ((shared, 'test images are also training images'), (ambiguous, 'images are in two classes')):
        if equal:
            pairs = [' = '.join(part.name_of(i) for part, i in pair)
                     for pair in itertools.islice(equal.values(), _MAX_SHOWN)]
            say('warning', f"{len(equal):,} {what}: {', '.join(pairs)}{' ...' * (len(equal) > _MAX_SHOWN)}")


def stored_size(name: str, image_size: int) -> int | None:
    """Returns the height and width of the images in a data set's files, which may not exist yet.

    Args:
      name: as for `prepare`.

    Returns:
      None if the images are stored as photos of different shapes.
    """
    if not DATASETS.is_own(name):
        return DATASETS.load(name).size
    return image_size if image_size <= LARGEST else None


class Scan(NamedTuple):
    """A user's images, before decoding.

    Attributes:
      classes: the names of the classes, in the order of their labels.
      parts: {part: (label, source) pairs}; without test images, all are in TRAIN. A source is the path of a file below
        the user's folder, or an element of an array. The order is pseudorandom but always the same.
      left_out: (path, reason) pairs of entries that are not pictures.
      state: strings that change if the images change.
    """
    classes: tuple[str, ...]
    parts: Mapping[str, list]
    left_out: list
    state: list


def write(folder: str, part: str, count: int, rows: Iterable[bytes], sources: Iterable[str] = ()) -> None:
    """Writes `count` records, divided evenly over the files of a part.

    Args:
      sources: for each record the path of the user's file below their folder, or an array and an index.
    """
    files, rows, encoded = _FILES[part], iter(rows), map(os.fsencode, sources)
    for i, name in enumerate(files):
        path, file_count = os.path.join(folder, name), count // len(files) + (i < count % len(files))
        with open(path, 'wb') as stream:
            stream.writelines(itertools.islice(rows, file_count))
        if listed := b'\0'.join(itertools.islice(encoded, file_count)):
            with open(path + _SOURCES, 'wb') as stream:
                stream.write(listed)


def write_classes(folder: str, classes: tuple[str, ...]) -> None:
    """Writes the names of the classes to a file in the folder, one per line."""
    with open(os.path.join(folder, CLASSES_FILE), 'w', **TEXT) as stream:
        stream.write('\n'.join(classes) + '\n')


def read_classes(folder: str) -> tuple[str, ...]:
    """Reads the names of the classes in a folder."""
    path = os.path.join(folder, CLASSES_FILE)
    try:
        with open(path, **TEXT) as stream:
            return tuple(line.strip() for line in stream if line.strip())
    except OSError as error:
        raise UsageError(f'{path} cannot be read ({error}); move {folder} away and start again') from error


class Expected(NamedTuple):
    """The expected result of `Found.images`.

    Attributes:
      parts: the ImageFiles of each part. In a folder of images every file counts as an image.
      how: the first action, such as 'downloading 170 MB'.
    """
    parts: dict[str, ImageFiles]
    how: str
