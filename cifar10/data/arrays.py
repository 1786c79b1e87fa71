"""A user's own images as NumPy arrays, in memory or in a file FILE.npz.

The names of the arrays are x_train, y_train, x_test and y_test, as in the files of `keras.datasets.mnist`. Without test
arrays, a fraction of the training images is used for testing. Importing this module must not import TensorFlow.
"""
import functools
import hashlib
import os
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from cifar10.base.directories import make_dir
from cifar10.base.errors import UsageError, describe_os_error
from cifar10.base.files import making, new_file
from cifar10.data.datasets import ARRAYS, MOST_CLASSES, TEST, TRAIN, Scan

_NAMES = {TRAIN: ('x_train', 'y_train'), TEST: ('x_test', 'y_test')}  # in a file
_GIVE_IMAGES = 'give images uint8 [n, height, width, 3] or [n, height, width]'
_GIVE_LABELS = 'one label for each image: whole numbers [n] from 0'


def scan(path: str) -> tuple[Scan, Callable]:
    """Reads and checks the labels in a file.

    Returns:
      (a Scan with sources such as 'x_train[7]'; the `pixels` of an `own_images.Own`).

    Raises:
      UsageError: the file or its labels are not valid.
    """
    parts, where = {}, f'--dataset={path}'
    with _opened(path) as file:
        state = [f'{array.filename} {array.file_size} {array.CRC}' for array in file.zip.infolist()]
        for part, (images_name, labels_name) in _parts(file, where).items():
            labels = _read(file, labels_name, path)
            _check_labels(labels, f'{where} has {labels_name}')
            # Shuffled, because some networks sample the first images before training.
            order = np.random.default_rng(0).permutation(len(labels))
            parts[part] = [(int(labels.flat[i]), f'{images_name}[{i}]') for i in order]
    classes = range(1 + max(label for pairs in parts.values() for label, _ in pairs))
    return Scan(tuple(map(str, classes)), parts, [], state), functools.cache(lambda: _pixels(path))


def _pixels(path):
    with _opened(path) as file:
        where = f'--dataset={path}'
        names = _parts(file, where).values()
        arrays = {name: _read(file, name, path) for pair in names for name in pair}
    _check(arrays, where)

    def image(source):
        name, _, index = source.partition('[')
        return coloured(arrays[name][int(index[:-1])])
    return image


def saved(dataset: Any, data_dir: str) -> str:
    """Writes a caller's arrays to a file in data_dir, named by their digest; returns its path.

    Args:
      dataset: (images, labels), or ((images, labels), (test images, test labels)).
      data_dir: directory, created if it does not exist.
    """
    pairs = dataset if isinstance(dataset, (tuple, list)) and dataset and _is_pair(dataset[0]) else (dataset,)
    if not isinstance(dataset, (tuple, list)) or len(pairs) > 2 or any(len(pair) != 2 for pair in pairs):
        raise UsageError('dataset is neither a pair of arrays nor two pairs; give (images, labels), or ((images, '
                         'labels), (test images, test labels))')
    try:
        arrays: dict[str, Any] = {name: np.ascontiguousarray(array) for names, pair in zip(_NAMES.values(), pairs)
                                  for name, array in zip(names, pair)}
    except ValueError as error:
        raise UsageError(f'dataset has rows of different lengths; {_GIVE_IMAGES}, and {_GIVE_LABELS}') from error
    _check(arrays, 'dataset')
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
    """Returns whether a value is (images, labels) rather than a list of images."""
    return isinstance(value, tuple) or isinstance(value, list) and len(value) == 2 and hasattr(value[0], 'dtype')


def coloured(image: np.ndarray) -> np.ndarray:
    """Converts an image [height, width], [height, width, 1] or [height, width, 3] to [height, width, 3]."""
    return np.broadcast_to(image.reshape(*image.shape[:2], -1), (*image.shape[:2], 3))


def check_images(images: np.ndarray, what: str, give: str = _GIVE_IMAGES) -> None:
    """Raises a UsageError unless an array is images, uint8 [n, height, width, 3 or 1] or [n, height, width].

    Args:
      what: beginning of the message, such as 'predict got images'.
      give: the remedy, the end of the message.
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


def _check(arrays, where):
    for images_name, labels_name in _parts(arrays, where).values():
        images, labels = arrays[images_name], arrays[labels_name]
        check_images(images, f'{where} has {images_name}')
        _check_labels(labels, f'{where} has {labels_name}')
        if len(images) != len(labels):
            raise UsageError(f'{where} has {len(images)} images in {images_name} and {len(labels)} labels in '
                             f'{labels_name}; give {_GIVE_LABELS}')


def _parts(names, where):
    """Returns the names of the images and labels of each part; raises a UsageError if one is missing."""
    parts = {}
    for part, pair in _NAMES.items():
        present = [name for name in pair if name in names]
        if len(present) == 1:
            raise UsageError(f'{where} has {present[0]} only; give {pair[0]} and {pair[1]}')
        if present:
            parts[part] = pair
    return parts


def _check_labels(labels, what):
    if labels.dtype.kind not in 'iu' or not labels.ndim or not len(labels) == labels.size > 0:
        raise UsageError(f'{what} of type {labels.dtype} and shape {labels.shape}; give {_GIVE_LABELS}')
    wrong = labels.min() if labels.min() < 0 else labels.max()
    if not 0 <= wrong < MOST_CLASSES:
        raise UsageError(f'{what} with the label {wrong}; give labels from 0 to at most {MOST_CLASSES - 1}')


def _opened(path):
    try:
        file = np.load(path, allow_pickle=False)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        why = describe_os_error(error) if isinstance(error, OSError) else error
        raise UsageError(f'--dataset={path} cannot be read ({why}); give a file from numpy.savez') from error
    if not isinstance(file, np.lib.npyio.NpzFile) or any(name not in file for name in _NAMES[TRAIN]):
        names = ', '.join(file) if isinstance(file, np.lib.npyio.NpzFile) else 'a single array'
        raise UsageError(f'--dataset={path} has {names}; give a file with x_train and y_train, and x_test and y_test '
                         'if there are test images')
    return file


def _read(file, name, path):
    try:
        return file[name]
    except (ValueError, zipfile.BadZipFile, OSError, EOFError) as error:
        raise UsageError(f'--dataset={path} cannot be read ({error}); give arrays of numbers') from error
