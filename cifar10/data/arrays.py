"""A user's own images as NumPy arrays, in memory or in a file FILE.npz.

The file has the arrays of `keras.datasets.mnist.load_data` and its like: x_train and y_train, and x_test and y_test
unless a fraction of the others is set apart for testing. Importing this module must not import TensorFlow.
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
    """Reads the labels in a file; raises a UsageError if no run can have them.

    Returns:
      (the Scan, whose sources are elements of arrays, such as 'x_train[7]'; the `pixels` of an `own_images.Own`).
    """
    parts, where = {}, f'--dataset={path}'
    with _opened(path) as file:
        state = [f'{array.filename} {array.file_size} {array.CRC}' for array in file.zip.infolist()]
        for part, (of_images, of_labels) in _parts(file, where).items():
            labels = _read(file, of_labels, path)
            _check_labels(labels, f'{where} has {of_labels}')
            # Not class after class: networks that look at some images before training take the first ones.
            order = np.random.default_rng(0).permutation(len(labels))
            parts[part] = [(int(labels.flat[i]), f'{of_images}[{i}]') for i in order]
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


def _check(arrays, where):
    for of_images, of_labels in _parts(arrays, where).values():
        images, labels = arrays[of_images], arrays[of_labels]
        check_images(images, f'{where} has {of_images}')
        _check_labels(labels, f'{where} has {of_labels}')
        if len(images) != len(labels):
            raise UsageError(f'{where} has {len(images)} images in {of_images} and {len(labels)} labels in '
                             f'{of_labels}; give {_GIVE_LABELS}')


def _parts(names, where):
    """Returns the names of the images and labels of each part; raises a UsageError if one is missing."""
    parts = {}
    for part, pair in _NAMES.items():
        given = [name for name in pair if name in names]
        if len(given) == 1:
            raise UsageError(f'{where} has {given[0]} only; give {pair[0]} and {pair[1]}')
        if given:
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
        raise UsageError(f'--dataset={path} cannot be read ({why}); give a file that numpy.savez has '
                         'written') from error
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
