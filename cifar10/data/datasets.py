"""Data sets in CIFAR's binary layout: makes their files if necessary, and verifies them.

A record is a byte or two of labels and an image: red, green and blue planes, of 32x32 pixels in CIFAR
(https://www.cs.toronto.edu/~kriz/cifar.html). How the files are made is in a module for each data set.
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
MOST_CLASSES = 256  # of records, whose label is a byte
LARGEST = 64  # height and width of a user's images that are converted to records, all of which are held in memory

# The files of CIFAR-10. The data sets that are made here have the same.
TRAIN_FILES = tuple(f'data_batch_{i}.bin' for i in range(1, 6))
TEST_FILES = ('test_batch.bin',)
CLASSES_FILE = 'batches.meta.txt'
_SOURCES = '.sources'  # at the end of the name of a file: what its records were made from, separated by zero bytes

_MOST_SAID = 3  # pairs of equal images, in a line
TEXT = dict(encoding='utf-8', errors='surrogateescape')  # as Python reads the names of folders

# The parts of a data set.
TRAIN = 'train'
TEST = 'test'
_FILES = {TRAIN: TRAIN_FILES, TEST: TEST_FILES}
ALL = 1.0  # as a fraction for testing: no run trains on these images, so one image of one class is enough


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set in CIFAR's binary layout; a subclass says how its files are made.

    Attributes:
      folder: the folder of its files, below data_dir.
      classes: the names of its classes, in the order of their labels; empty if they are known only from the
        files.
      counts: how many images each part has; None if it is known only from the files.
      files: the names of the files of each part.
      label_bytes: how many bytes of a record are labels, of which the last is used.
      size: height and width of the images in the files.
      archive: what `make` downloads unless it is in data_dir, with its `name` and its `size` in bytes; None if it
        downloads nothing.
    """
    folder: str
    classes: tuple[str, ...] = ()
    counts: dict | None = None
    files: dict = dataclasses.field(default_factory=lambda: _FILES)
    label_bytes: int = 1
    size: int = SIZE
    archive: Any = None

    def configured(self, test_fraction: float | None, image_size: int) -> 'Dataset':
        """Returns the data set whose files have this fraction for testing and this size; itself if they are given."""
        del test_fraction, image_size
        return self

    def expected(self) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
        """Returns (the names of the classes, the labels of each part, in any order) as `make` will make them.

        Raises a UsageError if it could not make them.
        """
        return self.classes, {part: np.arange(count) % len(self.classes) for part, count in self.counts.items()}

    def make(self, folder: str) -> None:
        """Downloads, renders or converts the files into a new folder, which appears whole or not at all."""
        raise NotImplementedError

    def images(self, name: str, folder: str, part: str, classes: tuple[str, ...], image_size: int) -> 'ImageFiles':
        """Returns the ImageFiles of a part that was made in `folder`, or will be; their count is not known yet."""
        paths = tuple(os.path.join(folder, file) for file in self.files[part])
        return ImageFiles(name, paths, classes, label_bytes=self.label_bytes, stored_size=self.size,
                       size=image_size)


@dataclasses.dataclass(frozen=True)
class ImageFiles:
    """The files of one part of a data set.

    Attributes:
      dataset: the name of the data set.
      files: their paths, in order.
      classes: the names of the classes, in the order of their labels.
      count: records in all of them; 0 before they are `verified`.
      class_counts: records of each class; empty before they are `verified`.
      digest: the SHA-256 of the files, one after the other, in hexadecimal digits; '' before they are `verified`.
      label_bytes: how many bytes of a record are labels, of which the last is used.
      stored_size: height and width in pixels of the images in the files.
      size: height and width to which the input pipeline brings them.
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
        """The files that a run needs when it is started again."""
        return [entry.path for entry in os.scandir(self.folder)]

    def verified(self) -> 'ImageFiles':
        """Returns the files with their counts and digest; raises a UsageError if the files are not valid."""
        digest = hashlib.sha256()
        labels = np.concatenate([self._labels(path, digest) for path in self.files])
        return self.counted(labels, digest.hexdigest())

    def counted(self, labels: np.ndarray, digest: str = '') -> 'ImageFiles':
        """Returns the files with their counts, given all labels."""
        counts = np.bincount(labels, minlength=len(self.classes))
        return dataclasses.replace(self, count=len(labels), class_counts=tuple(map(int, counts)), digest=digest)

    def _labels(self, path, digest):
        remedy = f'move {self.folder} away, and the next start makes it again'
        try:
            with named(path), open(path, 'rb') as stream:
                content = stream.read()
        except OSError as error:
            raise UsageError(f'{describe_os_error(error)}; make it readable, or {remedy}') from error
        if not content or len(content) % self.record_bytes:
            raise UsageError(f'{path} holds {len(content)} bytes, which is not a whole number of records of '
                             f'{self.record_bytes} bytes; {remedy}')
        digest.update(content)
        labels = np.frombuffer(content, np.uint8)[self.label_bytes - 1::self.record_bytes]
        wrong = np.flatnonzero(labels >= len(self.classes))
        if len(wrong):
            raise UsageError(f'record {wrong[0]} of {path} has label {labels[wrong[0]]}; labels must be 0 to '
                             f'{len(self.classes) - 1}; {remedy}')
        return labels.copy()  # without the images

    def examples(self) -> Iterator[tuple[int, str | bytes]]:
        """Yields the label of each example and a digest of its image, in order."""
        for path in self.files:
            with open(path, 'rb') as stream:
                while row := stream.read(self.record_bytes):
                    yield row[self.label_bytes - 1], hashlib.sha256(row[self.label_bytes:]).digest()

    def name_of(self, example: int) -> str:
        """Returns how a person can find an example: the file, or the array and index, of which its record was made."""
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
        """A phrase with the folder, which --check may find before it is made."""
        return f"{'in' if os.path.isdir(self.folder) else 'to be prepared in'} {self.folder}"


def find(settings: Any, of_run: str | None = None) -> 'Found':
    """Finds the images of a run; raises a UsageError if they, or data_dir, cannot be used.

    Args:
      settings: the run's `DataSettings`.
      of_run: the name of the folder of the files that a run has; it keeps to them if the user's images change. None for
        a new run.
    """
    return _find(settings.dataset, settings.data_dir, settings.test_fraction, settings.image_size, of_run)


def find_other(settings: Any, name: str) -> 'Found':
    """Finds another data set than the run's, whose test images are like the run's: all images, or a test part.

    Args:
      settings: the run's `DataSettings`.
      name: the name of the data set.
    """
    size = stored_size(settings.dataset, settings.image_size) or settings.image_size
    return _find(name, settings.data_dir, ALL, size)._replace(image_size=settings.image_size)


def _find(name, data_dir, test_fraction, image_size, of_run=None):
    refuse_among_images(data_dir, '--data_dir', name)
    dataset = DATASETS.load(name).configured(test_fraction, image_size)
    folder = os.path.join(data_dir, dataset.folder)
    found = functools.partial(Found, name, data_dir, image_size, dataset)
    parent, base = os.path.split(os.path.abspath(data_dir))
    if base == os.path.basename(folder) and os.path.isfile(os.path.join(data_dir, dataset.files[TRAIN][0])):
        raise UsageError(f'--data_dir={data_dir} holds the .bin files themselves; use --data_dir={parent}')
    why, began_with = 'files were added, removed or changed since the run began', ''
    if of_run:
        if found(folder).has_files_of(of_run):
            why = f"{os.path.basename(folder).partition('_')[2]} would decode the files now"
        began_with = os.path.join(os.path.dirname(folder), of_run)
    if began_with == folder or not os.path.isdir(began_with):
        return found(folder)
    return found(began_with, Line('changed', f'{name}: {why}; the run keeps to its images, in {began_with}, and '
                                             'another run takes the files as they are now', note=True))


class Found(NamedTuple):
    """A data set and the folder of its files. A user's own images are as they were when they were found.

    Attributes:
      name, data_dir, image_size: as for `prepare`.
      dataset: it can make the files.
      folder: of the files, which need not exist.
      line: about the folder, or None.
    """
    name: str
    data_dir: str
    image_size: int
    dataset: Dataset
    folder: str
    line: Line | None = None

    def has_files_of(self, folder: str | None) -> bool:
        """Returns whether a folder, given by its name, was made of the same files, by whatever decoder."""
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
        """Returns what `images` will make, or None if the files exist already.

        Raises a UsageError if the files cannot be made.
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
    """Raises a UsageError if a directory would lie among the folders of the classes of a user's own images."""
    if not DATASETS.is_own(dataset):
        return
    parts = [os.path.join(dataset, part) for part in (TRAIN, TEST)]
    folders = [dataset] if not any(map(os.path.isdir, parts)) else parts
    for folder in map(os.path.realpath, folders):
        if os.path.commonpath([folder, os.path.realpath(path)]) == folder:
            raise UsageError(f'{flag}={path} is in the folder of the images, {folder}, where each folder is a class; '
                             'use one outside it (what is there can be moved)')


def prepare(name: str, data_dir: str, part: str = TRAIN, test_fraction: float | None = None,
            image_size: int = SIZE) -> ImageFiles:
    """Returns the ImageFiles of a part; downloads, renders or converts the data set first if its files do not exist.

    Args:
      name: a name in `registry.DATASETS`, or a folder of images.
      data_dir: the directory of the data set's folder or archive, or where they will be put.
      part: TRAIN or TEST.
      test_fraction: the fraction of the images to set apart for testing; needed for a folder of images
        without train/ and test/, ignored for other data sets.
      image_size: height and width in pixels of the images that the input pipeline makes of the records. A folder of
        images is converted at this size; other data sets are resized as they are used.
    """
    return _find(name, data_dir, test_fraction, image_size).images(part)


def _make(dataset, name, folder, image_size, given):
    try:
        dataset.expected()  # raises what can be known before
        with making(folder):
            if not os.path.isdir(folder):
                dataset.make(folder)
                if DATASETS.is_own(name):
                    classes = read_classes(folder)
                    warn_of_equal(*(dataset.images(name, folder, each, classes, image_size) for each in (TRAIN, TEST)))
    except OSError as error:
        # A full disk has its remedy already.
        remedy = '' if error.errno in (errno.ENOSPC, errno.EDQUOT) else '; correct that, or name another directory'
        raise UsageError(f'the data set cannot be made for {given}: {describe_os_error(error)}{remedy}') from error


def warn_of_equal(train: ImageFiles, test: ImageFiles) -> None:
    """Prints warnings if training and test images are equal, and if equal images have different classes."""
    first, shared, unlike = {}, {}, {}
    for part in (train, test):
        for i, (label, digest) in enumerate(part.examples()):
            name = part.classes[label]
            of_part, k, its_name = first.setdefault(digest, (part, i, name))
            pair = (part, i), (of_part, k)
            if part is not of_part:
                shared[i] = pair
            if name != its_name:
                unlike.setdefault(digest, pair)
    for found, what in ((shared, 'of the test images are training images too'), (unlike, 'images are in two classes')):
        if found:
            pairs = [' = '.join(part.name_of(i) for part, i in pair)
                     for pair in itertools.islice(found.values(), _MOST_SAID)]
            say('warning', f"{len(found):,} {what}: {', '.join(pairs)}{' ...' * (len(found) > _MOST_SAID)}")


def stored_size(name: str, image_size: int) -> int | None:
    """Returns the height and width of the images in the files of a data set, which need not be there.

    Args:
      name: as for `prepare`.

    Returns:
      None if each image of a run of this size is a photo of its own shape, in a file.
    """
    if not DATASETS.is_own(name):
        return DATASETS.load(name).size
    return image_size if image_size <= LARGEST else None


class Scan(NamedTuple):
    """A user's own images, as found; no picture is decoded yet.

    Attributes:
      classes: the names of the classes, in the order of their labels.
      parts: {part: (label, source) pairs}; without test images, all are in TRAIN. A source is the path of a file below
        the user's folder, or an element of an array. The order looks random but is always the same.
      left_out: (path, reason) pairs of what is no picture.
      state: differs if the images differ.
    """
    classes: tuple[str, ...]
    parts: Mapping[str, list]
    left_out: list
    state: list


def write(folder: str, part: str, count: int, rows: Iterable[bytes], sources: Iterable[str] = ()) -> None:
    """Writes `count` records to the files of a part in a folder, one after the other, about as many to each.

    Args:
      sources: for each record the name of the user's file below their folder, or an array and an index.
    """
    files, rows, sources = _FILES[part], iter(rows), map(os.fsencode, sources)
    for i, name in enumerate(files):
        path, of_file = os.path.join(folder, name), count // len(files) + (i < count % len(files))
        with open(path, 'wb') as stream:
            stream.writelines(itertools.islice(rows, of_file))
        if listed := b'\0'.join(itertools.islice(sources, of_file)):
            with open(path + _SOURCES, 'wb') as stream:
                stream.write(listed)


def write_classes(folder: str, classes: tuple[str, ...]) -> None:
    """Writes the names of the classes beside the files, one a line."""
    with open(os.path.join(folder, CLASSES_FILE), 'w', **TEXT) as stream:
        stream.write('\n'.join(classes) + '\n')


def read_classes(folder: str) -> tuple[str, ...]:
    """Returns the names that `write_classes` wrote."""
    path = os.path.join(folder, CLASSES_FILE)
    try:
        with open(path, **TEXT) as stream:
            return tuple(line.strip() for line in stream if line.strip())
    except OSError as error:
        raise UsageError(f'{path} cannot be read ({error}); move {folder} away, and the next start makes it '
                         'again') from error


class Expected(NamedTuple):
    """What `Found.images` will make.

    Attributes:
      parts: the ImageFiles of each part. In a folder of images every file counts as an image.
      how: how it begins, such as 'downloading 170 MB'.
    """
    parts: dict[str, ImageFiles]
    how: str
