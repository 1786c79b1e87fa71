"""A user's own images as NumPy arrays, in memory or in a file FILE.npz.

The file has the arrays of `keras.datasets.mnist.load_data` and its like: x_train and y_train, and x_test and y_test
unless a fraction of the others is set apart for testing. They are converted once, to CIFAR's binary layout at the size
of the run, as pictures of the same pixels would be. Importing this module must not import TensorFlow.
"""
import dataclasses
import hashlib
import os
import zipfile
from typing import Any

import numpy as np

from cifar10.base.console import say
from cifar10.base.directories import make_dir
from cifar10.base.errors import UsageError, describe_os_error
from cifar10.base.files import making, new_file, new_folder
from cifar10.data import records
from cifar10.data.records import ALL, ARRAYS, LARGEST, TEST, TRAIN, TRAIN_FILES, Dataset

_NAMES = {TRAIN: ('x_train', 'y_train'), TEST: ('x_test', 'y_test')}  # in a file
_MOST_CLASSES = 256  # the label of a record is a byte
_GIVE_IMAGES = 'give images uint8 [n, height, width, 3] or [n, height, width]'
_GIVE_LABELS = 'one label for each image: whole numbers [n] from 0'


@dataclasses.dataclass(frozen=True)
class ArrayFile(Dataset):
    """The images in a file; they are converted once it is `configured`, to a folder below data_dir.

    Attributes:
      path: of the file.
      test_fraction: if it has no test images, the fraction of the images of each class that is for testing.
    """
    path: str = ''
    test_fraction: float | None = None

    def configured(self, test_fraction, image_size):
        if image_size > LARGEST:
            raise UsageError(f'--dataset={self.path} can be used up to --image_size={LARGEST}; for larger images save '
                             'them as picture files in a folder for each class')
        with _opened(self.path) as file:
            fraction = None if any(name in file for name in _NAMES[TEST]) else test_fraction
            state = [f'{array.filename} {array.file_size} {array.CRC}' for array in file.zip.infolist()]
        folder = records.folder_of(self.path, image_size, state, fraction)
        return dataclasses.replace(self, folder=folder, test_fraction=fraction, size=image_size)

    def expected(self):
        parts = _parts(self.path, self.test_fraction)
        return _classes(parts), records.labels_of(parts)

    def make(self, folder):
        """Converts the images to records of square images."""
        from cifar10.data.augment import Augmentation
        from cifar10.data.photos.picture_files import Reader
        from cifar10.data.photos.preparation import Preparation
        parts = _parts(self.path, self.test_fraction)
        size = self.size
        say('', f'converting {sum(map(len, parts.values())):,} images in {self.path} to {size}x{size} pixels')
        reader = Reader(Preparation(size, Augmentation(), size))

        def row(label, image):
            return bytes([label]) + reader.prepared(coloured(image)).transpose(2, 0, 1).tobytes()
        with new_folder(folder) as temporary:
            for part, pairs in parts.items():
                rows = (row(label, image) for label, (image, _) in pairs)
                records.write(temporary, part, len(pairs), rows, (source for _, (_, source) in pairs))
            records.write_classes(temporary, _classes(parts))


def dataset(path: str) -> Dataset:
    """Returns the data set of a user's own images, in a folder or in FILE.npz; raises a UsageError if there is none."""
    from cifar10.data import folders
    path = os.path.abspath(path)
    if not os.path.exists(path):
        raise UsageError(f'--dataset={path} does not exist; put your images there, or give the path where they are')
    if not path.endswith(ARRAYS):
        return folders.dataset(path)
    if not os.path.isfile(path):
        raise UsageError(f'--dataset={path} is not a file; give one that numpy.savez has written')
    return ArrayFile(path, path=path)


def saved(given: Any, data_dir: str) -> str:
    """Writes a caller's arrays to a file in data_dir, unless it exists; returns its path, which has their digest.

    Args:
      given: (images, labels), or ((images, labels), (test images, test labels)).
      data_dir: is made if it does not exist.
    """
    pairs = given if isinstance(given, (tuple, list)) and given and _is_pair(given[0]) else (given,)
    if not isinstance(given, (tuple, list)) or len(pairs) > 2 or any(len(pair) != 2 for pair in pairs):
        raise UsageError('dataset is neither a pair of arrays nor two pairs; give (images, labels), or ((images, '
                         'labels), (test images, test labels))')
    try:
        arrays = {name: np.ascontiguousarray(array)
                  for names, pair in zip(_NAMES.values(), pairs) for name, array in zip(names, pair)}
    except ValueError as error:
        raise UsageError(f'dataset has rows of different lengths; {_GIVE_IMAGES}, and {_GIVE_LABELS}') from error
    _checked(arrays, 'dataset')
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f'{name} {array.dtype.str} {array.shape} '.encode() + array.tobytes())
    make_dir(data_dir, '--data_dir')
    path = os.path.join(os.path.abspath(data_dir), f'arrays-{digest.hexdigest()[:16]}{ARRAYS}')
    with making(path):
        if not os.path.exists(path):
            with new_file(path) as temporary, open(temporary, 'wb') as stream:
                np.savez(stream, **arrays)
    return path


def _is_pair(value):
    """Returns whether a value is (images, labels), and not images as a list."""
    return isinstance(value, tuple) or isinstance(value, list) and len(value) == 2 and hasattr(value[0], 'dtype')


def coloured(image: np.ndarray) -> np.ndarray:
    """Returns an image [height, width, 3], given one that may be [height, width, 1] or [height, width]."""
    return np.broadcast_to(image.reshape(*image.shape[:2], -1), (*image.shape[:2], 3))


def check_images(images: np.ndarray, what: str, give: str = _GIVE_IMAGES) -> None:
    """Raises a UsageError if an array is not images, uint8 [n, height, width, 3 or 1] or [n, height, width].

    Args:
      what: the begin of the message: 'predict got images'.
      give: its end, the remedy.
    """
    wrong = []
    if images.dtype != np.uint8:
        wrong.append(f'type {images.dtype}')
        if images.dtype.kind in 'fiu' and images.size and images.min() >= 0:
            largest = images.max()
            factor = ' * 255' if images.dtype.kind == 'f' and largest <= 1 else ' / 257' if largest > 255 else ''
            give += f': (images{factor}).astype(np.uint8)' if factor else ': images.astype(np.uint8)'
    if images.ndim not in (3, 4) or images.ndim == 4 and images.shape[3] not in (1, 3) or 0 in images.shape[1:]:
        wrong.append(f'shape {images.shape}')
    elif images.ndim == 3 and images.shape[2] in (1, 3):
        wrong.append(f'shape {images.shape}, which is a single image')
    if wrong:
        raise UsageError(f"{what} of {' and '.join(wrong)}; {give}")


def _checked(arrays, where):
    """Returns the (images, labels) of each part; raises a UsageError if the arrays are not images and labels."""
    parts = {}
    for part, names in _NAMES.items():
        given = [name for name in names if name in arrays]
        if not given:
            continue
        if len(given) == 1:
            raise UsageError(f'{where} has {given[0]} only; give {names[0]} and {names[1]}')
        images, labels = parts[part] = tuple(arrays[name] for name in names)
        check_images(images, f'{where} has {names[0]}')
        if labels.dtype.kind not in 'iu' or not labels.ndim or not len(labels) == labels.size == len(images) > 0:
            raise UsageError(f"{where} has {', '.join(names)} of shapes {images.shape} and {labels.shape}, the labels "
                             f'of type {labels.dtype}; give {_GIVE_LABELS}')
        if labels.min() < 0 or labels.max() >= _MOST_CLASSES:
            wrong = labels.min() if labels.min() < 0 else labels.max()
            raise UsageError(f'{where} has the label {wrong} in {names[1]}; give labels from 0 to at most '
                             f'{_MOST_CLASSES - 1}')
    return parts


def _opened(path):
    """Returns a file of arrays, open; nothing in it is unpickled."""
    try:
        file = np.load(path, allow_pickle=False)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        why = describe_os_error(error) if isinstance(error, OSError) else error
        raise UsageError(f'--dataset={path} cannot be read ({why}); give a file that numpy.savez has '
                         'written') from error
    if not isinstance(file, np.lib.npyio.NpzFile) or any(name not in file for name in _NAMES[TRAIN]):
        names = ', '.join(file) if isinstance(file, np.lib.npyio.NpzFile) else 'a single array'
        raise UsageError(f'--dataset={path} has {names}; give a file with x_train and y_train, and x_test and y_test '
                         'if there are test images')
    return file


def _parts(path, test_fraction):
    """Returns {part: its (label, (image, array and index)) pairs}; raises a UsageError if no run can have them.

    Their order looks random but is always the same: networks that look at some images before training take the first.
    """
    with _opened(path) as file:
        try:
            arrays = {name: file[name] for names in _NAMES.values() for name in names if name in file}
        except (ValueError, zipfile.BadZipFile, OSError, EOFError) as error:
            raise UsageError(f'--dataset={path} cannot be read ({error}); give arrays of numbers') from error
    parts = {}
    for part, (images, labels) in _checked(arrays, f'--dataset={path}').items():
        order = np.random.default_rng(0).permutation(len(images))
        parts[part] = [(int(label), (image, f'{_NAMES[part][0]}[{i}]'))
                       for i, label, image in zip(order, labels.ravel()[order], images[order])]
    parts = records.divided(parts, test_fraction)
    if test_fraction == ALL:
        return parts
    classes = set(map(int, _classes(parts)))
    if len(classes) == 1:
        raise UsageError(f'--dataset={path} has the label 0 only; give images of at least two classes')
    for part, pairs in parts.items():
        if missing := classes - {label for label, _ in pairs}:
            kind = 'training' if part == TRAIN else 'test'
            raise UsageError(f'--dataset={path} has no {kind} image of label {min(missing)}; give images of every '
                             'label from 0 to the largest (without test images, some of each are held out)')
    if len(parts[TRAIN]) < len(TRAIN_FILES):  # no file is empty
        raise UsageError(f'--dataset={path} has {len(parts[TRAIN])} training images; give at least '
                         f'{len(TRAIN_FILES)}')
    return parts


def _classes(parts):
    return tuple(str(label) for label in range(1 + max(label for pairs in parts.values() for label, _ in pairs)))
