"""Image records in CIFAR's binary layout: find, verify, count; the same for every data set.

A record is a byte or two of labels and 3,072 bytes of image: red, green and blue planes of 32x32
(https://www.cs.toronto.edu/~kriz/cifar.html). How a data set comes to be in this layout is its own file's matter.
"""
import dataclasses
import os
from collections.abc import Callable

import numpy as np

from cifar10.directories import refuse_default_of_others
from cifar10.errors import UsageError, describe_os_error
from cifar10.files import making, parents_of, remove_leftovers
from cifar10.registry import DATASETS

SIZE = 32
IMAGE_BYTES = 3 * SIZE * SIZE
RECORD_BYTES = 1 + IMAGE_BYTES  # with one byte of label

# The files of CIFAR-10, whose layout our own data sets have too.
TRAIN_FILES = tuple(f'data_batch_{i}.bin' for i in range(1, 6))
TEST_FILES = ('test_batch.bin',)
CLASSES_FILE = 'batches.meta.txt'

_TEXT = dict(encoding='utf-8', errors='surrogateescape')  # as Python reads the names of folders

# The parts of a data set.
TRAIN, TEST = 'train', 'test'


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set in CIFAR's binary layout.

    Attributes:
      folder: its folder below data_dir, with the .bin files; or a path of its own.
      make: function folder -> None that downloads, renders or converts the files into a new folder, whole or not at
        all.
      classes: the names of its classes, in the order of their labels; empty if they are not known before it is made.
      counts: how many images each part has, once it is made.
      files: the names of the files of each part.
      label_bytes, label: how many bytes of a record are labels, and which one is meant.
      archive: the name and the bytes of what `make` downloads, if it is not in data_dir; None: nothing.
    """
    folder: str
    make: Callable[[str], None]
    classes: tuple[str, ...] = ()
    counts: dict | None = None
    files: dict = dataclasses.field(default_factory=lambda: {TRAIN: TRAIN_FILES, TEST: TEST_FILES})
    label_bytes: int = 1
    label: int = 0
    archive: tuple[str, int] | None = None

    def divided(self, test_fraction: float | None) -> 'Dataset':
        """Returns the data set whose test images are a fraction of all; this one, where they are apart already."""
        del test_fraction
        return self

    def check(self) -> None:
        """Raises a UsageError if `make` could not make the files from what is there."""

    def expected(self) -> tuple[tuple[str, ...], dict[str, int]]:
        """Returns (the names of the classes; how many images each part has) of what `make` makes."""
        return self.classes, self.counts

    def read_classes(self, folder: str) -> tuple[str, ...]:
        """Returns the names of the classes of the data set that was made in `folder`."""
        del folder
        return self.classes

    def notice(self) -> str | None:
        """Returns a line about what a user may not expect of the files, or None."""
        return None


@dataclasses.dataclass(frozen=True)
class Records:
    """The verified files of one part of a data set.

    Attributes:
      dataset: its name.
      files: paths, in order.
      count: records in all of them.
      classes: the names of the classes, in the order of their labels.
      label_bytes, label: how many bytes of a record are labels, and which one is meant.
    """
    dataset: str
    files: tuple[str, ...]
    count: int
    classes: tuple[str, ...]
    label_bytes: int = 1
    label: int = 0

    @property
    def folder(self) -> str:
        """The folder of the files."""
        return os.path.dirname(self.files[0])

    @property
    def record_bytes(self) -> int:
        """The length of a record."""
        return self.label_bytes + IMAGE_BYTES

    def planes(self, n: int) -> np.ndarray:
        """Returns the first images of the first file, at most n: uint8 [n, 3, 32, 32]."""
        rows = np.fromfile(self.files[0], np.uint8, n * self.record_bytes).reshape(-1, self.record_bytes)
        return rows[:, self.label_bytes:].reshape(-1, 3, SIZE, SIZE)

    def __str__(self):
        return f'{self.dataset}, {self.count:,} images in {self.folder}'


def expected(dataset: str, data_dir: str, test_fraction: float | None = None) -> dict[str, Records] | None:
    """Returns the Records of each part that `prepare` will have made; None if they are there already.

    Of a folder of pictures every file counts as a picture. Arguments as those of `prepare`.

    Raises:
      UsageError: they cannot be made from what is there.
    """
    kind, folder = _locate(dataset, data_dir, test_fraction)
    if os.path.isdir(folder):
        return None
    kind.check()
    classes, counts = kind.expected()
    return {part: Records(dataset, tuple(os.path.join(folder, name) for name in names), counts[part], classes,
                          kind.label_bytes, kind.label) for part, names in kind.files.items()}


def download_bytes(dataset: str, data_dir: str) -> int:
    """Returns how many bytes `prepare` would download to make a data set."""
    archive = DATASETS.load(dataset).archive
    return 0 if archive is None or os.path.isfile(os.path.join(data_dir, archive[0])) else archive[1]


def _locate(dataset, data_dir, test_fraction):
    """Returns (the Dataset, its folder)."""
    refuse_default_of_others(data_dir, '--data_dir')
    kind = DATASETS.load(dataset).divided(test_fraction)
    folder = os.path.join(data_dir, kind.folder)
    parent, name = os.path.split(os.path.abspath(data_dir))
    if name == os.path.basename(folder) and os.path.isfile(os.path.join(data_dir, kind.files[TRAIN][0])):
        raise UsageError(f'--data_dir={data_dir} holds the .bin files themselves; use --data_dir={parent}')
    return kind, folder


def prepare(dataset: str, data_dir: str, part: str = TRAIN, test_fraction: float | None = None) -> Records:
    """Returns the Records of a part, fetching, rendering or converting the data set if need be.

    Args:
      dataset: a name in `registry.DATASETS`, or a folder of pictures.
      data_dir: holds the data set's folder of .bin files, or its archive, or nothing.
      part: TRAIN or TEST.
      test_fraction: of a folder of pictures that is not divided, how much is for testing; needed for such a folder.

    Raises:
      UsageError: the data cannot be downloaded or written, or a file is missing or corrupt.
    """
    kind, folder = _locate(dataset, data_dir, test_fraction)
    if not os.path.isdir(folder):
        try:
            kind.check()
            with parents_of(folder), making(folder):
                if not os.path.isdir(folder):  # another process may have made it meanwhile
                    kind.make(folder)
        except OSError as error:
            where = os.path.dirname(folder) if os.path.isabs(kind.folder) else f'--data_dir={data_dir}'
            raise UsageError(f'the data set cannot be put into {where}: {describe_os_error(error)}') from error
    else:
        remove_leftovers(folder)
        if kind.archive:
            remove_leftovers(os.path.join(data_dir, kind.archive[0]))
        if part == TRAIN and (notice := kind.notice()):
            print(f'warning: {notice}')
    classes = kind.read_classes(folder)
    paths = tuple(os.path.join(folder, name) for name in kind.files[part])
    count = sum(_verified_count(path, kind, len(classes)) for path in paths)
    return Records(dataset, paths, count, classes, kind.label_bytes, kind.label)


def _verified_count(path, kind, num_classes):
    """Returns how many records a file holds, after checking its length and its labels."""
    remedy = f'delete {os.path.dirname(path)} to have it made again'
    if not os.path.isfile(path):
        raise UsageError(f'{path} is missing; {remedy}')
    size, length = os.path.getsize(path), kind.label_bytes + IMAGE_BYTES
    if size == 0 or size % length:
        raise UsageError(f'{path} holds {size} bytes, which is not a whole number of records of {length} bytes; '
                         f'{remedy}')
    labels = np.memmap(path, np.uint8, 'r', shape=(size // length, length))[:, kind.label]
    wrong = np.flatnonzero(labels >= num_classes)
    if len(wrong):
        raise UsageError(f'{path} has label {labels[wrong[0]]} in record {wrong[0]}, where labels are 0 to '
                         f'{num_classes - 1}; {remedy}')
    return len(labels)


def write(folder: str, files: tuple[str, ...], labels: np.ndarray, images: np.ndarray) -> None:
    """Writes images to the files of a part, about as many to each.

    Args:
      folder: where.
      files: the names.
      labels: uint8 [n].
      images: uint8 [n, 3, 32, 32].
    """
    rows = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)
    for name, part in zip(files, np.array_split(rows, len(files))):
        part.tofile(os.path.join(folder, name))


def write_classes(folder: str, classes: tuple[str, ...]) -> None:
    """Writes the names of the classes beside the files, one a line."""
    with open(os.path.join(folder, CLASSES_FILE), 'w', **_TEXT) as stream:
        stream.write('\n'.join(classes) + '\n')


def read_classes(folder: str) -> tuple[str, ...]:
    """Returns the names that `write_classes` wrote."""
    path = os.path.join(folder, CLASSES_FILE)
    try:
        with open(path, **_TEXT) as stream:
            return tuple(line.strip() for line in stream if line.strip())
    except OSError as error:
        raise UsageError(f'{path} cannot be read ({error}); delete {folder} to have it made again') from error
