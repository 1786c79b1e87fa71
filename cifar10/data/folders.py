"""A user's own images: a folder for each class.

They are prepared once, at the size of the run, below data_dir: up to 64 pixels in CIFAR's binary layout; above, as a
file for each photo, and a list of them.

The folders are `train/<class>` and `test/<class>`, or just `<class>`; then a fraction of the images of each
class is set apart for testing.
"""
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Sequence

from cifar10.base.console import say
from cifar10.base.errors import UsageError, describe_os_error, listed
from cifar10.base.files import locked, new_folder
from cifar10.data import records
from cifar10.data.augment import Augmentation
from cifar10.data.photos import prepared_photos
from cifar10.data.photos.picture_files import DECODER, NoPicture, Reader, each, is_picture, shown
from cifar10.data.photos.preparation import Preparation
from cifar10.data.photos.prepared_photos import Photos
from cifar10.data.records import ALL, LARGEST, TEST, TRAIN, TRAIN_FILES, Dataset

_MOST_CLASSES = 256  # of records, whose label is a byte
_LEAST_IMAGES = len(TRAIN_FILES)  # of the training part, so that no file is empty
_LEFT_OUT = 'left-out.txt'  # has the files that could not be decoded, if there are any
_MOST_SAID = 3  # of them, in a line
_NOTES = ('.csv', '.json', '.xml')  # the suffixes of what has boxes or several labels for other programs


def dataset(path: str) -> '_ImageFolder':
    """Returns the data set of the images in a folder; raises a UsageError if the folder has another layout."""
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        raise UsageError(f'--dataset={path} is not a folder or an .npz file; give a folder with a folder of images for '
                         'each class, or arrays in FILE.npz')
    parts = [part for part in (TRAIN, TEST) if os.path.isdir(os.path.join(path, part))]
    if len(parts) == 1:
        part = parts[0]
        other = TEST if part == TRAIN else TRAIN
        raise UsageError(f'--dataset={path} has {part}/ but no {other}/; add {other}/ (a directory such as val/ has to '
                         f'be renamed), or use --dataset={os.path.join(path, part)} to set a fraction of it apart for '
                         f'testing, or, if {part} is a class, rename it')
    return _ImageFolder(path, path=path)


def pictures(given: Sequence[str]) -> list[str]:
    """Returns the paths of the pictures that a user gives to classify: files, and in folders all below them.

    What a folder has is sorted. Hidden files and files that are no pictures are left out. A file that is given is not
    looked at.

    Raises:
      UsageError: a folder has no picture, or cannot be read.
    """
    found = []
    for path in given:
        if not os.path.isdir(path):
            found.append(path)
            continue
        files = list(_files_below(path, set()))
        are_pictures = list(each(is_picture, files))
        if not any(are_pictures):
            raise UsageError(f'--image={path}: no picture is in this folder or below it; give another, or files')
        if others := [file for file, is_one in zip(files, are_pictures) if not is_one]:
            say('warning', f'{len(others)} of {len(files)} files in {path} left out, as they are no pictures; the '
                           f'first is {shown(others[0])}')
        found += itertools.compress(files, are_pictures)
    return found


def _files_below(folder, seen):
    """Yields the paths of the files in a folder and all below it; folders in `seen`, to which links lead, only once."""
    if (real := os.path.realpath(folder)) in seen:
        return
    seen.add(real)
    for name in _names(folder):
        path = os.path.join(folder, name)
        if not os.path.isdir(path):
            yield path
        else:
            yield from _files_below(path, seen)


@dataclasses.dataclass(frozen=True)
class _ImageFolder(Dataset):
    """The images below a folder; they are converted once it is `configured`.

    Attributes:
      path: the folder.
      test_fraction: the fraction of the images of each class that is for testing; None if it has train/ and test/.
      found: what `_examples` has found, but for their state.
    """
    path: str = ''
    test_fraction: float | None = None
    found: tuple = dataclasses.field(default=(), repr=False)

    def configured(self, test_fraction, image_size):
        if os.path.isdir(os.path.join(self.path, TRAIN)):
            test_fraction = None
        *found, state = _examples(self.path, test_fraction)
        folder = records.folder_of(self.path, image_size, state, test_fraction, DECODER)
        common = dict(size=image_size, path=self.path, test_fraction=test_fraction, found=tuple(found))
        if image_size > LARGEST:
            return _PhotoFolder(folder, **common)
        return _ImageFolder(folder, **common)

    def expected(self):
        classes, files, others = self.found
        if self.size <= LARGEST and len(classes) > _MOST_CLASSES:
            raise UsageError(f'--dataset={self.path} has {len(classes)} class directories; use '
                             f'{_MOST_CLASSES} or fewer, or an --image_size above {LARGEST}')
        parts = records.divided(files, self.test_fraction)
        self._check_counts(classes, parts, others)
        return tuple(classes), records.labels_of(parts)

    def make(self, folder):
        reader = Reader(Preparation(self.size, Augmentation(), self.size))
        self._make(folder, 'converting', f' to {self.size}x{self.size} pixels',
                   lambda path: (reader(path), path))

    def _make(self, folder, doing, how, read):
        """Makes a folder of what `read` makes of the images, all of which is in memory meanwhile.

        Args:
          doing, how: what the line says of it, before and after the files.
        """
        classes, files, others = self.found
        unreadable, count = list(others), sum(map(len, files.values()))
        say('', f'{doing} {count:,} files of {len(classes)} classes in {self.path}{how}')
        with new_folder(folder) as temporary:
            examples = {part: list(_read(read, pairs, unreadable)) for part, pairs in files.items()}
            parts = records.divided(examples, self.test_fraction)
            self._check_counts(classes, parts, unreadable)
            for part, pairs in parts.items():
                self._write(temporary, part, pairs)
            records.write_classes(temporary, classes)
            if unreadable:
                left_out = [f'{shown(file)} ({reason})' for file, reason in sorted(unreadable)]
                with open(os.path.join(temporary, _LEFT_OUT), 'w', encoding='utf-8') as stream:
                    stream.writelines(f'{line}\n' for line in left_out)
                say('warning', f'left out {len(left_out)} of {count + len(others):,} files and folders, which are no '
                               f"pictures: {', '.join(left_out[:_MOST_SAID])}; all are in "
                               f'{os.path.join(folder, _LEFT_OUT)}')

    def _write(self, folder, part, examples):
        """Writes the files of a part, given (label, what `read` made) pairs."""
        rows = (bytes([label]) + image.transpose(2, 0, 1).tobytes() for label, (image, _) in examples)
        sources = (os.path.relpath(path, self.path) for _, (_, path) in examples)
        records.write(folder, part, len(examples), rows, sources)

    def _check_counts(self, classes, parts, left_out=()):
        """Raises a UsageError if a part or class has too few images; `left_out` has (path, reason) of others."""
        if self.test_fraction == ALL:
            if not parts[TEST]:
                raise UsageError(f'--dataset={self.path} has no image; give a folder with images for each class')
            return
        if len(classes) == 1:
            folder = os.path.join(self.path, TRAIN if self.test_fraction is None else '', *classes)
            raise UsageError(f'--dataset={self.path} has one class directory, {classes[0]}/; add a directory with '
                             'images of another class, or, if the classes are in this one, use '
                             f'--dataset={folder}/')
        for part, examples in parts.items():
            for missing in set(range(len(classes))) - {label for label, _ in examples}:
                name = classes[missing]
                files = sorted(file for file in left_out if os.path.basename(os.path.dirname(file[0])) == name)
                why = ''
                if files:
                    file, reason = files[0]
                    why = f' ({len(files)} files or folders in it cannot be read; the first is {shown(file)}, {reason})'
                held_out = ', as at least one is held out for testing' if self.test_fraction is not None else ''
                raise UsageError(f"--dataset={self.path}: class {name} has no "
                                 f"{'training' if part == TRAIN else 'test'} image{why}; give it more{held_out}, or "
                                 'remove its directory (images in directories below it are not read)')
        if len(parts[TRAIN]) < _LEAST_IMAGES:
            raise UsageError(f'--dataset={self.path} has {len(parts[TRAIN])} training images; give at least '
                             f'{_LEAST_IMAGES}')


@dataclasses.dataclass(frozen=True)
class _PhotoFolder(_ImageFolder):
    """The images below a folder, of which each is prepared as a file of its own; `folder` has a list of them."""
    files: dict = dataclasses.field(default_factory=lambda: {part: (f'{part}.tsv',) for part in (TRAIN, TEST)})

    def made_bytes(self, folder):
        return prepared_photos.size_of(os.path.dirname(folder))

    def records(self, name, folder, part, classes, image_size):
        return Photos(name, (os.path.join(folder, *self.files[part]),), classes, size=image_size)

    def make(self, folder):
        photos = os.path.dirname(folder)  # of all divisions, and of all states of the user's folder
        how = (f', about {prepared_photos.usual_bytes(self.size) / 1000:.0f} kB each, in {photos}; if this is '
               'interrupted, the next start continues it')
        with locked(os.path.join(photos, '.lock'), waiting=f'another process that prepares photos in {photos}'):
            self._make(folder, 'preparing ', how, prepared_photos.Writer(photos, self.size))

    def _write(self, folder, part, examples):
        prepared_photos.write_list(os.path.join(folder, *self.files[part]), self.path, examples)


def _examples(path, test_fraction):
    """Finds the files below a user's folder; raises a UsageError if they have another layout.

    Returns:
      (the names of the classes, {part: (label, path) pairs}, (path, reason) pairs of what is not a file, their state).
      The order of the pairs looks random but is always the same. Without train/ and test/ all are in TRAIN, undivided.
      The state is a list of strings, which has the names and the `records.state` of all.
    """
    folders = {TRAIN: path} if test_fraction is not None else {part: os.path.join(path, part) for part in (TRAIN, TEST)}
    classes = _classes(path, folders)
    examples, others, state = {}, [], list(classes)
    for part, folder in folders.items():
        entries = [(os.path.join(name, entry), label) for label, name in enumerate(classes)
                   for entry in _names(os.path.join(folder, name))]
        # Not class after class: networks that look at some images before training take the first ones.
        entries.sort(key=lambda entry: hashlib.sha256(os.fsencode(entry[0])).digest())
        examples[part] = []
        for entry, label in entries:
            path = os.path.join(folder, entry)
            state += entry, (of_file := records.state(path))
            if of_file is None:
                others.append((path, 'a folder, in which nothing is read' if os.path.isdir(path) else 'not a file'))
            elif path.lower().endswith(_NOTES):
                others.append((path, 'no picture: the label of an image is its directory'))
            else:
                examples[part].append((label, path))
    return classes, examples, others, state


def _names(folder):
    """Returns the sorted names in a folder that are not hidden; raises a UsageError if the user may not read it."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith('.'))
    except PermissionError as error:
        raise UsageError(f'{describe_os_error(error)}; make the folder readable, or remove it') from error


def _class_names(folder):
    """Returns the sorted names of the class directories in a folder."""
    return [name for name in _names(folder) if os.path.isdir(os.path.join(folder, name))]


def _classes(path, folders):
    """Returns the names of the classes, given the folder of each part; raises a UsageError if no run can have them."""
    names = {part: _class_names(folder) for part, folder in folders.items()}
    for part, folder in folders.items():
        for name in names[part]:
            if name.splitlines(keepends=True) != [name.strip()]:  # it would not survive in a file of one name a line
                raise UsageError(f'the class directory {name!r} in {folder} has a line break in its name, or a space '
                                 'at an end; rename it')
            if folder == path and name.lower() in (TRAIN, TEST):
                raise UsageError(f'--dataset={path} has {name}/ among its class directories; rename it to '
                                 f'{name.lower()} if it holds class directories, or else to another name')
    classes = names[TRAIN]
    if set(classes) != set(names.get(TEST, classes)):
        only = [f"only {part}/ has {listed(odd)}" for part, other in ((TRAIN, TEST), (TEST, TRAIN))
                if (odd := [name for name in names[part] if name not in names[other]])]
        raise UsageError(f"the classes in --dataset={path} differ: {', '.join(only)}; give both the same classes")
    if not classes:
        notes = [name for name in _names(folders[TRAIN]) if name.lower().endswith(_NOTES)]
        raise UsageError(f'--dataset={path} has no class directories; this program trains one label an image'
                         f"{', and reads none from ' * bool(notes)}{''.join(notes[:1])}: put each image into a "
                         f'directory that has the name of its class, such as cat/1.jpg ({TRAIN} and {TEST} are no '
                         'classes)')
    return classes


def _read(read, pairs, unreadable):
    """Yields (label, what `read` makes) of files; adds (path, reason) of those that it refuses to `unreadable`."""
    results = each(read, [path for _, path in pairs], progress=True)
    for (label, path), result in zip(pairs, results, strict=True):
        if isinstance(result, NoPicture):
            unreadable.append((path, str(result)))
        else:
            yield label, result
