"""A user's own pictures: a folder for each class, converted once to CIFAR's binary layout.

The folders are `train/<class>` and `test/<class>`; or `<class>` alone, of whose pictures a fraction is set apart for
testing.
"""
import collections
import dataclasses
import functools
import hashlib
import os
import unicodedata

import numpy as np

from cifar10.data import pictures, records
from cifar10.data.records import CLASSES_FILE, TEST, TEST_FILES, TRAIN, TRAIN_FILES, Dataset
from cifar10.errors import UsageError
from cifar10.files import new_folder

_CONVERTED = 'cifar-bin'  # begins the name of the folder with the converted files, among those of the pictures
_UNPRINTABLE = ('Cc', 'Zl', 'Zp')  # categories of Unicode: what a terminal obeys, and what ends a line
_MOST_CLASSES = 256  # a label is a byte
_LEAST_PICTURES = len(TRAIN_FILES)  # for training: each file has one


def dataset(path: str) -> '_Pictures':
    """Returns the data set of the pictures in a folder.

    Raises:
      UsageError: it is not laid out as it must be.
    """
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        raise UsageError(f'--dataset={path} is not a folder; name one with train/<class> and test/<class>, or with '
                         '<class>')
    parts = [part for part in (TRAIN, TEST) if os.path.isdir(os.path.join(path, part))]
    if len(parts) == 1:
        raise UsageError(f'--dataset={path} has {parts[0]}/ but not the other of train/ and test/; add it, name '
                         f'{os.path.join(path, parts[0])} itself to have a part of it set apart for testing, or, if '
                         f'{parts[0]} is a class, rename it')
    return _Pictures(os.path.join(path, _CONVERTED), functools.partial(_convert, path, None), path=path,
                     is_divided=bool(parts))


@dataclasses.dataclass(frozen=True)
class _Pictures(Dataset):
    """Attributes: the folder of the pictures; whether it has train/ and test/, or else what is for testing."""
    path: str = ''
    is_divided: bool = True
    test_fraction: float = 0.0

    def divided(self, test_fraction):
        if self.is_divided:
            return self
        if test_fraction is None:
            raise ValueError(f'{self.path} is not divided into train/ and test/, so it needs a test_fraction')
        return dataclasses.replace(self, folder=f'{self.folder}-{test_fraction:g}', test_fraction=test_fraction,
                                   make=functools.partial(_convert, self.path, test_fraction))

    def check(self):
        _laid_out(self.path, None if self.is_divided else self.test_fraction)
        if not os.access(self.path, os.W_OK):
            raise UsageError(f'--dataset={self.path} is not writable, but the converted images are stored there; use a '
                             'writable directory with symbolic links to its class directories')

    def expected(self):
        fraction = None if self.is_divided else self.test_fraction
        classes, parts = _laid_out(self.path, fraction)
        files = {part: _files(folder, classes) for part, folder in parts.items()}
        counts = {part: len(each) for part, each in _parts_of(self.path, classes, files, fraction).items()}
        return tuple(classes), counts

    def read_classes(self, folder):
        return records.read_classes(folder)

    def notice(self):
        newest = max((os.path.getmtime(os.path.join(self.path, part, name)) for part in self._parts()
                      for name in _classes(os.path.join(self.path, part))), default=0)
        if newest > os.path.getmtime(self.folder):
            return (f'images were added or removed after the conversion; delete {self.folder} to convert them again '
                    '(a run can go on only with the same classes and number of training images)')
        return None

    def _parts(self):
        return (TRAIN, TEST) if self.is_divided else ('',)


def _classes(folder):
    """Returns the names of the classes in a folder, sorted; hidden folders and what was converted are none."""
    return sorted(name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name))
                  and not name.startswith('.') and not _is_converted(folder, name))


def _is_converted(folder, name):
    return name.startswith(_CONVERTED) and os.path.isfile(os.path.join(folder, name, CLASSES_FILE))


def _check_name(folder, name):
    """Raises a UsageError if a class directory in `folder` has a name that no class can have."""
    if any(unicodedata.category(character) in _UNPRINTABLE for character in name):
        problem = 'has control characters in its name; rename it'
    elif name != name.strip():
        problem = 'has spaces at an end of its name; rename it'
    elif name.startswith(_CONVERTED):
        problem = 'has a name for converted images, but holds none; rename or remove it'
    else:
        return
    raise UsageError(f'the class directory {name!r} in {folder} {problem}')


def _laid_out(path, test_fraction):
    """Returns (the classes, {part: its folder}); without a fraction, `path` has train/ and test/.

    Raises:
      UsageError: it is not laid out as it must be.
    """
    parts = {TRAIN: path} if test_fraction is not None else {
        part: os.path.join(path, part) for part in (TRAIN, TEST)}
    classes = _classes(parts[TRAIN])
    for part, folder in parts.items():
        for name in _classes(folder):
            _check_name(folder, name)
            if test_fraction is not None and name.lower() in (TRAIN, TEST):
                raise UsageError(f'--dataset={path} has {name}/ among its class directories; rename it to '
                                 f'{name.lower()} if it holds class directories, or else to another name')
        if test_fraction is None and not _classes(folder):
            raise UsageError(f'--dataset={path} has no class directories in {part}/; put the images into '
                             f'{part}/<class>, or, if {part} is a class, rename it')
    for part in parts.values():
        odd = set(_classes(part)) ^ set(classes)
        if odd:
            raise UsageError(f'class {min(odd)} is only in one of {TRAIN}/ and {TEST}/ in --dataset={path}; give both '
                             'the same classes')
    if not 2 <= len(classes) <= _MOST_CLASSES:
        raise UsageError(f'--dataset={path} needs 2 to {_MOST_CLASSES} class directories, but has {len(classes)}')
    return classes, parts


def _convert(path, test_fraction, folder):
    """Writes the pictures below `path` to a new folder."""
    classes, parts = _laid_out(path, test_fraction)
    files = {part: _files(where, classes) for part, where in parts.items()}
    print(f'converting {sum(map(len, files.values())):,} files of {len(classes)} classes in {path}', flush=True)
    good = _parts_of(path, classes, {part: _decoded(found) for part, found in files.items()}, test_fraction)
    with new_folder(folder) as temporary:
        for part, names in ((TRAIN, TRAIN_FILES), (TEST, TEST_FILES)):
            labels, images = zip(*good[part])
            records.write(temporary, names, np.array(labels, np.uint8), np.array(images).transpose(0, 3, 1, 2))
        records.write_classes(temporary, classes)


def _parts_of(path, classes, found, test_fraction):
    """Returns {part: its (label, picture)}; with a fraction, what was found is divided.

    Raises:
      UsageError: there are too few.
    """
    if test_fraction is not None:
        found = _divided(found[TRAIN], test_fraction)
    for part, of_part in found.items():
        for label in set(range(len(classes))) - {label for label, _ in of_part}:
            count = sum(each == label for pairs in found.values() for each, _ in pairs)
            change = ', lower --test_fraction' if test_fraction is not None and count > 1 else ''
            raise UsageError(f'--dataset={path}: class {classes[label]} has no image for the part {part}; give it '
                             f'more{change}, or remove its directory')
    if len(found[TRAIN]) < _LEAST_PICTURES:
        raise UsageError(f'--dataset={path} has {len(found[TRAIN])} training images; at least {_LEAST_PICTURES} are '
                         'needed')
    return found


def _files(folder, classes):
    """Returns (label, path) of all files, in an order that is random but always the same."""
    found = [(label, os.path.join(folder, name, file)) for label, name in enumerate(classes)
             for file in os.listdir(os.path.join(folder, name)) if not file.startswith('.')]
    # Not class after class: networks that look at some images before training take the first ones.
    return sorted(found, key=lambda each: hashlib.sha256(os.fsencode(os.path.relpath(each[1], folder))).digest())


def _divided(good, fraction):
    """Returns the pictures of each part: of every class, a fraction is for testing, but at least one."""
    left = {label: max(round(fraction * count), 1)
            for label, count in collections.Counter(label for label, _ in good).items()}
    parts = {TRAIN: [], TEST: []}
    for label, image in good:
        parts[TEST if left[label] > 0 else TRAIN].append((label, image))
        left[label] -= 1
    return parts


def _decoded(files):
    """Returns (label, image uint8 [32, 32, 3]) of those files that are pictures; says which are not."""
    decoded = pictures.Decoder().try_each([path for _, path in files], bar=True)
    wrong = [(path, error) for (_, path), error in zip(files, decoded) if isinstance(error, Exception)]
    if wrong:
        path, error = min(wrong, key=lambda each: each[0])
        print(f'warning: left out {len(wrong)} of {len(files)} files; the first is {pictures.shown(path)} '
              f'({error})')
    return [(label, image) for (label, _), image in zip(files, decoded) if isinstance(image, np.ndarray)]
