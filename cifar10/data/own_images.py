"""A user's images: a folder for each class, or NumPy arrays in FILE.npz.

They are prepared once, at the size of the run, below data_dir: up to 64 pixels in CIFAR's binary layout, above as one
file per photo and a list of the photos.
"""
import collections
import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cifar10.base.console import say
from cifar10.base.errors import UsageError
from cifar10.base.files import new_folder
from cifar10.base.locks import locked
from cifar10.data import arrays, datasets, folders
from cifar10.data.augment import Augmentation
from cifar10.data.datasets import ALL, ARRAYS, LARGEST, MOST_CLASSES, TEST, TEXT, TRAIN, TRAIN_FILES, Dataset, Scan
from cifar10.data.photos import prepared_photos
from cifar10.data.photos.picture_files import DECODER, NoPicture, each, prepared, shown
from cifar10.data.photos.preparation import Preparation
from cifar10.data.photos.prepared_photos import Photos

_MIN_IMAGES = len(TRAIN_FILES)  # one training image per file
_LEFT_OUT = 'left-out.txt'  # lists the files that could not be decoded, if any
_MAX_SHOWN = 3  # such files, in a line


def dataset(path: str) -> Dataset:
    """Returns the data set of a user's images, in a folder or in FILE.npz; raises a UsageError if it does not exist."""
    path = os.path.abspath(path)
    if not os.path.exists(path):
        raise UsageError(f'--dataset={path} does not exist; put your images there, or give their path')
    return _Unread(path)


@dataclasses.dataclass(frozen=True)
class _Unread(Dataset):
    """A user's images before they are found; `folder` is the user's folder or file."""

    def configured(self, test_fraction, image_size):
        is_file = self.folder.endswith(ARRAYS)
        if is_file and image_size > LARGEST:
            raise UsageError(f'--dataset={self.folder} supports at most --image_size={LARGEST}; save larger images as '
                             'picture files in a folder for each class')
        scan, pixels = (arrays if is_file else folders).scan(self.folder)
        fraction = None if TEST in scan.parts else test_fraction
        digest = hashlib.sha256('\0'.join(map(str, scan.state)).encode(**TEXT)).hexdigest()[:12]
        name = f"{digest}{f'-{fraction:g}' if fraction else ''}_{DECODER}"
        kind = Own if image_size <= LARGEST else _OwnPhotos
        return kind(os.path.join(f'{os.path.basename(self.folder)}-{image_size}px', name), size=image_size,
                    path=self.folder, test_fraction=fraction, scan=scan, pixels=pixels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Dataset):
    """A user's images, which `make` converts to a folder below data_dir.

    Attributes:
      path: the path of the user's folder or file.
      test_fraction: the fraction of the images of each class for testing; None if there are test images.
      scan: the Scan of the images.
      pixels: function () -> function (source of the scan) -> the path of a file, or an array of pixels.
    """
    path: str
    test_fraction: float | None
    scan: Scan = dataclasses.field(repr=False)
    pixels: Callable[[], Callable[[str], Any]]

    def expected(self):
        classes = self.scan.classes
        if self.size <= LARGEST and len(classes) > MOST_CLASSES:
            raise UsageError(f'--dataset={self.path} has {len(classes)} classes; use {MOST_CLASSES} or fewer, or an '
                             f'--image_size above {LARGEST}')
        parts = self._divided(self.scan.parts)
        self._check_counts(parts, self.scan.left_out)
        self.pixels()  # raises a UsageError for arrays that are not images
        return classes, {part: np.array([label for label, _ in pairs], int) for part, pairs in parts.items()}

    def make(self, folder):
        preparation, pixels = Preparation(self.size, Augmentation(), self.size), self.pixels()
        self._make(folder, 'converting', f' to {self.size}x{self.size} pixels',
                   lambda source: (prepared(pixels(source), preparation), source))

    def _make(self, folder, doing, how, read):
        """Writes the results of `read` for all sources to a new folder; holds them in memory meanwhile."""
        classes, parts, left_out, _ = self.scan
        unreadable, count = list(left_out), sum(map(len, parts.values()))
        say('', f'{doing} {count:,} images of {len(classes)} classes in {self.path}{how}')
        with new_folder(folder) as temporary:
            examples = self._divided({part: list(self._read(read, pairs, unreadable)) for part, pairs in parts.items()})
            self._check_counts(examples, unreadable)
            for part, pairs in examples.items():
                self._write(temporary, part, pairs)
            datasets.write_classes(temporary, classes)
            if unreadable:
                lines = [f'{shown(file)} ({reason})' for file, reason in sorted(unreadable)]
                with open(os.path.join(temporary, _LEFT_OUT), 'w', encoding='utf-8') as stream:
                    stream.writelines(f'{line}\n' for line in lines)
                say('warning', f'left out {len(lines)} of {count + len(left_out):,} files and folders that are not '
                               f"pictures: {', '.join(lines[:_MAX_SHOWN])}; {os.path.join(folder, _LEFT_OUT)} lists "
                               'all of them')

    def _read(self, read, pairs, unreadable):
        """Yields (label, result of `read`) for each source; adds (path, reason) of unreadable files to `unreadable`."""
        results = each(read, [source for _, source in pairs], progress=True)
        for (label, source), result in zip(pairs, results, strict=True):
            if isinstance(result, NoPicture):
                unreadable.append((os.path.join(self.path, source), str(result)))
            else:
                yield label, result

    def _write(self, folder, part, examples):
        rows = (bytes([label]) + image.transpose(2, 0, 1).tobytes() for label, (image, _) in examples)
        datasets.write(folder, part, len(examples), rows, (source for _, (_, source) in examples))

    def _divided(self, parts: Mapping[str, list]) -> Mapping[str, list]:
        """Moves the test fraction of each class, but at least one example, to TEST; keeps the order."""
        if self.test_fraction is None:
            return parts
        counts = collections.Counter(label for label, _ in parts[TRAIN])
        remaining = {label: max(round(self.test_fraction * count), 1) for label, count in counts.items()}
        divided: dict[str, list] = {TRAIN: [], TEST: []}
        for example in parts[TRAIN]:
            label, _ = example
            divided[TEST if remaining[label] > 0 else TRAIN].append(example)
            remaining[label] -= 1
        return divided

    def _check_counts(self, parts, left_out):
        """Raises a UsageError if a part or class has too few images; `left_out` has (path, reason) pairs."""
        classes, is_folder = self.scan.classes, os.path.isdir(self.path)
        if self.test_fraction == ALL:
            if not parts[TEST]:
                raise UsageError(f'--dataset={self.path} has no image; give a folder with images for each class')
            return
        if len(classes) == 1:
            folder = os.path.join(self.path, TRAIN if self.test_fraction is None else '', *classes)
            nested = f', or, if its folder has the classes, use --dataset={folder}/' if is_folder else ''
            raise UsageError(f'--dataset={self.path} has only one class, {classes[0]}; add a second class{nested}')
        for part, examples in parts.items():
            for missing in sorted(set(range(len(classes))) - {label for label, _ in examples}):
                name = classes[missing]
                files = sorted(file for file in left_out if os.path.basename(os.path.dirname(file[0])) == name)
                why = ''
                if files:
                    file, reason = files[0]
                    why = f' ({len(files)} files or folders in it cannot be read, such as {shown(file)}, {reason})'
                held_out = ' (at least one is used for testing)' if self.test_fraction is not None else ''
                remedy = 'remove its folder (images in subfolders are ignored)' if is_folder else (
                    'number the labels from 0 without it')
                raise UsageError(f"--dataset={self.path}: class {name} has no "
                                 f"{'training' if part == TRAIN else 'test'} image{why}; add images{held_out}, or "
                                 f'{remedy}')
        if len(parts[TRAIN]) < _MIN_IMAGES:
            raise UsageError(f'--dataset={self.path} has {len(parts[TRAIN])} training images; give at least '
                             f'{_MIN_IMAGES}')


@dataclasses.dataclass(frozen=True)
class _OwnPhotos(Own):
    """A user's images, each prepared as a separate file; `folder` has a list of the files."""
    files: dict = dataclasses.field(default_factory=lambda: {part: (f'{part}.tsv',) for part in (TRAIN, TEST)})

    def images(self, name, folder, part, classes, image_size):
        return Photos(name, (os.path.join(folder, *self.files[part]),), classes, size=image_size)

    def make(self, folder):
        photos = os.path.dirname(folder)  # shared by all test fractions and versions of the user's folder
        how = (f', about {prepared_photos.usual_bytes(self.size) / 1000:.0f} kB each, in {photos}; after an '
               'interruption, start again to continue')
        with locked(os.path.join(photos, '.lock'), waiting=f'another process that prepares photos in {photos}'):
            writer, path_of = prepared_photos.Writer(photos, self.size), self.pixels()
            self._make(folder, 'preparing ', how, lambda source: writer(path_of(source)))

    def _write(self, folder, part, examples):
        prepared_photos.write_list(os.path.join(folder, *self.files[part]), self.path, examples)
