"""A user's own pictures: a folder for each class, converted once to CIFAR's binary layout.

The folders are `train/<class>` and `test/<class>`; or `<class>` alone, of whose pictures a fraction is set apart for
testing.
"""
import dataclasses
import functools
import hashlib
import multiprocessing.pool
import os

import numpy as np

from cifar10.data import pictures, records
from cifar10.data.records import CLASSES_FILE, TEST, TEST_FILES, TRAIN, TRAIN_FILES, Dataset
from cifar10.errors import UsageError
from cifar10.files import new_folder

_CONVERTED = 'cifar-bin'  # begins the name of the folder with the converted files, among those of the pictures
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
        raise UsageError(f'--dataset={path} has {parts[0]}/ but not the other of train/ and test/; add it, or name '
                         f'{os.path.join(path, parts[0])} itself to have a part of it set apart for testing')
    return _Pictures(os.path.join(path, _CONVERTED), functools.partial(_convert, path, None), CLASSES_FILE, path=path,
                     is_divided=bool(parts))


@dataclasses.dataclass(frozen=True)
class _Pictures(Dataset):
    """Attributes: the folder of the pictures; whether it has train/ and test/."""
    path: str = ''
    is_divided: bool = True

    def divided(self, test_fraction):
        if self.is_divided:
            return self
        return dataclasses.replace(self, folder=f'{self.folder}-{test_fraction:g}',
                                   make=functools.partial(_convert, self.path, test_fraction))

    def notice(self):
        newest = max((os.path.getmtime(os.path.join(self.path, part, name)) for part in self._parts()
                      for name in _classes(os.path.join(self.path, part))), default=0)
        if newest > os.path.getmtime(self.folder):
            return f'pictures came or went after they were converted; delete {self.folder} to have that done again'
        return None

    def _parts(self):
        return (TRAIN, TEST) if self.is_divided else ('',)


def _classes(folder):
    """Returns the names of the classes in a folder, sorted."""
    return sorted(name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name))
                  and not name.startswith(('.', _CONVERTED)))


def _convert(path, test_fraction, folder):
    """Writes the pictures below `path` to a new folder; without a fraction, `path` has train/ and test/."""
    parts = {TRAIN: os.path.join(path, TRAIN), TEST: os.path.join(path, TEST)} if test_fraction is None else {
        TRAIN: path}
    classes = _classes(parts[TRAIN])
    for part in parts.values():
        odd = set(_classes(part)) ^ set(classes)
        if odd:
            raise UsageError(f'class {min(odd)} is only in one of {TRAIN}/ and {TEST}/ in --dataset={path}; give both '
                             'the same classes')
    if not 2 <= len(classes) <= _MOST_CLASSES:
        raise UsageError(f'--dataset={path} has {len(classes)} folders of pictures, one for each class; give it 2 to '
                         f'{_MOST_CLASSES}')
    found = {part: _files(where, classes) for part, where in parts.items()}
    if test_fraction is not None:
        found = _divided(found[TRAIN], test_fraction)
    print(f'converting {sum(map(len, found.values())):,} pictures of {len(classes)} classes in {path}', flush=True)
    with new_folder(folder) as temporary:
        for (part, files), names in zip(found.items(), (TRAIN_FILES, TEST_FILES)):
            labels, images = _decoded(files)
            if len(images) < (_LEAST_PICTURES if part == TRAIN else 1):
                raise UsageError(f'--dataset={path} has {len(images)} pictures for the part {part}; give it more')
            records.write(temporary, names, labels, images)
        records.write_classes(temporary, classes)


def _files(folder, classes):
    """Returns (label, path) of all files, in an order that is random but always the same."""
    found = [(label, os.path.join(folder, name, file)) for label, name in enumerate(classes)
             for file in os.listdir(os.path.join(folder, name)) if not file.startswith('.')]
    # Not class after class: networks that look at some images before training take the first ones.
    return sorted(found, key=lambda each: hashlib.sha256(os.path.relpath(each[1], folder).encode()).digest())


def _divided(files, fraction):
    """Returns the files of each part: of every class, a fraction is for testing, but at least one."""
    test = []
    for label in sorted({label for label, _ in files}):
        own = [each for each in files if each[0] == label]
        test += own[:max(round(fraction * len(own)), 1)]
    test = set(test)
    return {TRAIN: [each for each in files if each not in test], TEST: [each for each in files if each in test]}


def _decoded(files):
    """Returns (labels uint8 [n], images uint8 [n, 3, 32, 32]) of those that are pictures; says which are not."""
    decoder = pictures.Decoder()

    def decode(path):
        try:
            return decoder(path)
        except pictures.NoPicture as error:
            return error

    with multiprocessing.pool.ThreadPool(os.cpu_count()) as pool:
        decoded = pool.map(decode, [path for _, path in files])
    wrong = [(path, error) for (_, path), error in zip(files, decoded) if isinstance(error, Exception)]
    if wrong:
        path, error = min(wrong, key=lambda each: each[0])
        print(f'warning: {len(wrong)} of {len(files)} files are left out; the first is {path} ({error})')
    good = [(label, image) for (label, _), image in zip(files, decoded) if isinstance(image, np.ndarray)]
    images = np.array([image for _, image in good], np.uint8).reshape(-1, records.SIZE, records.SIZE, 3)
    return np.array([label for label, _ in good], np.uint8), images.transpose(0, 3, 1, 2)
