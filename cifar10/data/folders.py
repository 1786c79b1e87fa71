"""A user's own images: a folder for each class.

They are converted once, at the size of the run: up to 64 pixels to CIFAR's binary layout; above, to a file for each
photo, in a folder beside those of the classes, and a list of them.

The folders are `train/<class>` and `test/<class>`, or just `<class>`; then a fraction of the images of each
class is set apart for testing.
"""
import collections
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
import re
import tempfile
import unicodedata
import warnings

from cifar10.base.console import Line, say
from cifar10.base.errors import UsageError, describe_os_error
from cifar10.base.files import named, new_folder
from cifar10.data import SIZE, records
from cifar10.data.augment import Augmentation
from cifar10.data.photos import prepared_photos
from cifar10.data.photos.picture_files import NoPicture, Reader, each, formats, opened, shown
from cifar10.data.photos.preparation import Preparation
from cifar10.data.photos.prepared_photos import Photo, Photos
from cifar10.data.records import CLASSES_FILE, LARGEST, TEST, TEST_FILES, TRAIN, TRAIN_FILES, Dataset

_CONVERTED = 'cifar-bin'  # names of folders with converted files begin with it; they lie beside the class directories
_PHOTOS = re.compile(_CONVERTED + r'-\d+px-photos')  # the name of a folder with prepared photos, of all divisions
_UNPRINTABLE = ('Cc', 'Zl', 'Zp')  # categories of Unicode: what a terminal obeys, and what ends a line
_LEAST_IMAGES = len(TRAIN_FILES)  # of the training part, so that no file is empty
_LEFT_OUT = 'left-out.txt'  # has the files that could not be decoded, if there are any


def dataset(path: str) -> '_ImageFolder':
    """Returns the data set of the images in a folder; raises a UsageError if the folder has another layout."""
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        raise UsageError(f'--dataset={path} is not a folder; give one that holds train/<class> and test/<class>, or '
                         'just <class>')
    parts = [part for part in (TRAIN, TEST) if os.path.isdir(os.path.join(path, part))]
    if len(parts) == 1:
        part = parts[0]
        other = TEST if part == TRAIN else TRAIN
        raise UsageError(f'--dataset={path} has {part}/ but no {other}/; add {other}/ (a directory such as val/ has to '
                         f'be renamed), or use --dataset={os.path.join(path, part)} to set a fraction of it apart for '
                         f'testing, or, if {part} is a class, rename it')
    return _ImageFolder(path, make=None, path=path, is_divided=bool(parts))


@dataclasses.dataclass(frozen=True)
class _ImageFolder(Dataset):
    """The images below a folder; they are converted once it is `configured`.

    Attributes:
      path: the folder.
      is_divided: whether it has train/ and test/.
      test_fraction: if it has not, the fraction of the images of each class that is for testing; otherwise None.
    """
    path: str = ''
    is_divided: bool = True
    test_fraction: float | None = None

    _MOST_CLASSES = 256  # the label of a record is a byte

    def configured(self, test_fraction, image_size):
        if self.is_divided:
            test_fraction = None
        elif test_fraction is None:
            raise ValueError(f'{self.path} is not divided into train/ and test/, so it needs a test_fraction')
        folder = os.path.join(self.path, _CONVERTED)
        if test_fraction is not None:
            folder += f'-{test_fraction:g}'
        if image_size != SIZE:
            folder += f'-{image_size}px'
        if image_size > LARGEST:
            photos = os.path.join(self.path, f'{_CONVERTED}-{image_size}px-photos')
            return _PhotoFolder(folder, functools.partial(_prepare, self.path, test_fraction, image_size, photos),
                                files={part: (f'{part}.tsv',) for part in (TRAIN, TEST)}, size=image_size,
                                path=self.path, is_divided=self.is_divided, test_fraction=test_fraction, photos=photos)
        return dataclasses.replace(self, folder=folder, test_fraction=test_fraction, size=image_size,
                                   make=functools.partial(_convert, self.path, test_fraction, image_size))

    def expected(self):
        classes, files, _ = _examples(self.path, self.test_fraction)
        if len(classes) > self._MOST_CLASSES:
            raise UsageError(f'--dataset={self.path} has {len(classes)} class directories; up to '
                             f'--image_size={LARGEST} there may be {self._MOST_CLASSES}, above it any number')
        if not os.access(self.path, os.W_OK):
            raise UsageError(f'--dataset={self.path} is not writable, but what is made of its images is stored there; '
                             'use a writable directory with symbolic links to its class directories')
        labels = {part: [label for label, _ in pairs] for part, pairs in files.items()}
        labels = _check_counts(self.path, classes, labels, self.test_fraction)
        _refuse_unreadable(self.path, classes, files, self.test_fraction)
        return tuple(classes), {part: len(of_part) for part, of_part in labels.items()}

    def notices(self):
        path, left_out = os.path.join(self.folder, _LEFT_OUT), ''
        if os.path.exists(path):
            with named(path), open(path, encoding='utf-8') as stream:
                left_out = stream.read()
            yield Line('files', f'{len(left_out.splitlines())} left out, as {path} lists')
        folders = [self.path]
        if self.is_divided:
            folders = [os.path.join(self.path, part) for part in (TRAIN, TEST)]
        class_folders = [os.path.join(folder, name) for folder in folders for name in _class_names(folder)]
        newest = max((self._last_change(folder, left_out) for folder in class_folders), default=0)
        if newest > os.path.getmtime(self.folder):
            known = records.read_classes(self.folder)
            names = sorted({os.path.basename(folder) for folder in class_folders}.difference(known))
            new = f", so {', '.join(names)} {'is' if len(names) == 1 else 'are'} not trained" if names else ''
            yield Line('warning', f'images were added, removed or changed after {self.folder} was made{new}; rm -r '
                                  f'{self.folder} makes the next start read all images again (a run can go on only '
                                  'with the same classes and number of training images)')

    @staticmethod
    def _last_change(class_folder, left_out):
        """Returns when the last file, which may be behind a link, was added to a folder, removed from it or changed."""
        times = [os.path.getmtime(class_folder)]
        for entry in _entries(class_folder):
            try:
                times.append(entry.stat().st_mtime)
            except OSError:  # a link to nothing: it is new, unless it led nowhere when the files were made
                times.append(0 if f'{shown(entry.path)} (' in left_out else math.inf)
        return max(times)


@dataclasses.dataclass(frozen=True)
class _PhotoFolder(_ImageFolder):
    """The images below a folder, of which each is prepared as a file of its own.

    Attributes:
      photos: the folder of the prepared photos; `folder` has a list of them.
    """
    photos: str = ''

    _MOST_CLASSES = math.inf

    def made_bytes(self):
        return prepared_photos.size_of(self.photos)

    def records(self, name, folder, part, classes, image_size):
        return Photos(name, (os.path.join(folder, *self.files[part]),), classes, size=image_size, root=self.photos)


def _entries(folder):
    """Returns what is in a folder, without what is hidden; raises a UsageError if the user may not read it."""
    try:
        return [entry for entry in os.scandir(folder) if not entry.name.startswith('.')]
    except PermissionError as error:
        raise UsageError(f'{describe_os_error(error)}; make the folder readable, or remove it') from error


def _is_dir(entry):
    """Returns whether an entry of a folder is a folder; a link that cannot be followed is none."""
    with contextlib.suppress(OSError):
        return entry.is_dir()
    return False


def _class_names(folder):
    """Returns the sorted names of the class directories in a folder, without hidden and converted ones."""
    return sorted(entry.name for entry in _entries(folder) if _is_dir(entry) and not (
        _PHOTOS.fullmatch(entry.name)
        or entry.name.startswith(_CONVERTED) and os.path.isfile(os.path.join(entry.path, CLASSES_FILE))))


def _check_name(folder, name):
    """Raises a UsageError if a class directory in `folder` has a name that no class can have."""
    has_unprintable = any(unicodedata.category(character) in _UNPRINTABLE for character in name)
    if has_unprintable or name != name.strip() or name.startswith(_CONVERTED):
        raise UsageError(f'the class directory {name!r} in {folder} has control characters in its name, or a space at '
                         f'an end, or begins with {_CONVERTED}, as converted images do; rename or remove it')


def _layout(path, test_fraction):
    """Returns (the names of the classes, {part: its folder}); raises a UsageError if `path` has another layout.

    Args:
      path: the folder of the images.
      test_fraction: None if `path` has train/ and test/. Otherwise all images are in the part TRAIN, not yet
        divided.
    """
    if test_fraction is None:
        folders = {part: os.path.join(path, part) for part in (TRAIN, TEST)}
    else:
        folders = {TRAIN: path}
    names = {part: _class_names(folder) for part, folder in folders.items()}
    for part, folder in folders.items():
        for name in names[part]:
            _check_name(folder, name)
            if test_fraction is not None and name.lower() in (TRAIN, TEST):
                raise UsageError(f'--dataset={path} has {name}/ among its class directories; rename it to '
                                 f'{name.lower()} if it holds class directories, or else to another name')
    classes = names[TRAIN]
    if odd := set(names[TRAIN]) ^ set(names.get(TEST, classes)):
        raise UsageError(f'class {min(odd)} is only in one of {TRAIN}/ and {TEST}/ in --dataset={path}; give both '
                         'the same classes')
    if not classes:
        raise UsageError(f'--dataset={path} has no class directories; put each image into a directory that has the '
                         f'name of its class, which must not be {TRAIN} or {TEST}')
    if len(classes) == 1:
        raise UsageError(f'--dataset={path} has one class directory, {classes[0]}/; add a directory with images of '
                         'another class, or, if the classes are in this one, use '
                         f'--dataset={os.path.join(folders[TRAIN], classes[0])}/')
    return classes, folders


def _examples(path, test_fraction):
    """Finds the files below `path`; raises a UsageError if they have another layout.

    Returns:
      (the names of the classes, {part: (label, path) pairs}, (path, reason) of whatever else is in the folders).
      The order of the pairs looks random but is always the same. The parts are those of `_layout`.
    """
    classes, folders = _layout(path, test_fraction)
    files, misplaced = {}, []
    for part, folder in folders.items():
        entries = [(label, entry) for label, name in enumerate(classes)
                   for entry in _entries(os.path.join(folder, name))]
        misplaced += [(entry.path, 'a directory') for _, entry in entries if _is_dir(entry)]
        misplaced += [(entry.path, 'beside the class directories, not in one') for entry in _entries(folder)
                      if not _is_dir(entry)]

        def digest(labelled_path, folder=folder):
            _, path = labelled_path
            return hashlib.sha256(os.fsencode(os.path.relpath(path, folder))).digest()
        # Not class after class: networks that look at some images before training take the first ones.
        files[part] = sorted(((label, entry.path) for label, entry in entries if not _is_dir(entry)), key=digest)
    return classes, files, misplaced


def _divided(part, labels, test_fraction):
    """Returns {part: for each of some images, whether it is in it}. Only images count, so other files change nothing.

    Of every class a fraction is for testing, but at least one image; None: all are in `part`.
    """
    if test_fraction is None:
        return {part: [True] * len(labels)}
    counts = collections.Counter(labels)
    tests_to_come = {label: max(round(test_fraction * count), 1) for label, count in counts.items()}
    are_tests = []
    for label in labels:
        are_tests.append(tests_to_come[label] > 0)
        tests_to_come[label] -= 1
    return {TRAIN: [not is_test for is_test in are_tests], TEST: are_tests}


def _check_counts(path, classes, labels, test_fraction, left_out=()):
    """Returns {part: the labels of its images}; raises a UsageError if a part or a class has too few.

    Args:
      labels: the labels of the images, for each part of `_layout`.
      left_out: (path, reason) of each file that is no image.
    """
    labels = {part: list(itertools.compress(found, chosen)) for whole, found in labels.items()
              for part, chosen in _divided(whole, found, test_fraction).items()}
    for part in labels:
        for missing in set(range(len(classes))) - set(labels[part]):
            count = sum(part_labels.count(missing) for part_labels in labels.values())
            kind = 'training' if part == TRAIN else 'test'
            change = ', lower --test_fraction' if test_fraction is not None and count > 1 else ''
            files = sorted(file for file in left_out if os.path.basename(os.path.dirname(file[0])) == classes[missing])
            why = ''
            if part == TRAIN and test_fraction is not None and count == 1:
                why = ', because its only image is held out for testing'
            if files:
                why += (f' ({len(files)} of its files cannot be read; the first is {shown(files[0][0])}, '
                       f"{files[0][1]}; what is read is {', '.join(formats())})")
            raise UsageError(f'--dataset={path}: class {classes[missing]} has no {kind} image{why}; give it '
                             f'more{change}, or remove its directory (images in directories below it are not read)')
    if len(labels[TRAIN]) < _LEAST_IMAGES:
        raise UsageError(f'--dataset={path} has {len(labels[TRAIN])} training images; at least {_LEAST_IMAGES} are '
                         'needed')
    return labels


def _refuse_unreadable(path, classes, files, test_fraction):
    """Raises a UsageError if a class has too few files that can be read, before any is converted.

    `files` is of `_examples`.
    """
    left_out, labels = [], {}
    enough = 1 if test_fraction is None else 2  # images, of which one is for testing
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', module=r'PIL\.')
        for part, pairs in files.items():
            readable = collections.Counter()
            for label, file in pairs:
                if readable[label] < enough:
                    try:
                        with opened(file):
                            readable[label] += 1
                    except NoPicture as error:
                        left_out.append((file, str(error)))
            too_few = [label for label, count in readable.items() if 0 < count < enough]
            labels[part] = [*(label for label, _ in pairs if readable[label] == enough), *too_few]
    _check_counts(path, classes, labels, test_fraction, left_out)


def _convert(path, test_fraction, size, folder):
    """Converts the images below `path` to records of square images of a size in a new folder."""
    def write(temporary, part, count, examples):
        rows = (bytes([label]) + planes for label, planes in examples)
        records.write(temporary, {TRAIN: TRAIN_FILES, TEST: TEST_FILES}[part], count, rows)
    reader = Reader(Preparation(size, Augmentation(), size))
    _make(path, test_fraction, folder, 'converting', lambda total: f' to {size}x{size} pixels', reader,
          lambda image: image.transpose(2, 0, 1).tobytes(), write)


def _prepare(path, test_fraction, size, photos, folder):
    """Prepares those images below `path` that are not in the folder `photos` yet, and lists all in a new folder."""
    def how(total):
        return (f', about {total * prepared_photos.usual_bytes(size) / 1e6:,.1f} MB, in {photos}; if this is '
                'interrupted, the next start goes on')

    def write(temporary, part, count, examples):
        found = ((label, Photo(*json.loads(photo))) for label, photo in examples)
        prepared_photos.write_list(os.path.join(temporary, f'{part}.tsv'), path, found)
    with prepared_photos.alone_in(photos):
        before = len(os.listdir(photos))
        _make(path, test_fraction, folder, 'preparing ', how, prepared_photos.Writer(photos, size),
              lambda photo: json.dumps(photo).encode(), write)
        if before > 1:  # besides the lock
            say('prepared', f'{len(os.listdir(photos)) - before:,} photos; the others had been prepared before')


def _make(path, test_fraction, folder, doing, how, read, packed, write):
    """Makes a folder of what is made of the images below `path`, of which few are in memory at a time.

    Args:
      doing, how: what the line says of it, before the files and, as a function of their number, after them.
      read: function path -> what is made of the image in a file; raises a NoPicture if there is none.
      packed: function (what `read` made) -> bytes.
      write: function (temporary folder, part, their number, (label, bytes) pairs) that writes the files of a part.
    """
    classes, files, misplaced = _examples(path, test_fraction)
    folders = sum(os.path.isdir(entry) for entry, _ in misplaced)
    total = len(misplaced) - folders + sum(map(len, files.values()))
    say('', f'{doing} {total:,} files of {len(classes)} classes in {path}{how(total)}')
    with new_folder(folder) as temporary:
        left_out = list(misplaced)
        labels = {}
        for whole, pairs in files.items():
            found, lengths = [], []
            labels[whole] = found
            with tempfile.TemporaryFile(dir=temporary) as stream:  # until it is known which of the files are images
                for label, made in _read(read, pairs, left_out):
                    found.append(label)
                    lengths.append(stream.write(packed(made)))
                for part, chosen in _divided(whole, found, test_fraction).items():
                    stream.seek(0)
                    examples = ((label, stream.read(length)) for label, length in zip(found, lengths))
                    write(temporary, part, sum(chosen), itertools.compress(examples, chosen))
        records.write_classes(temporary, classes)
        if left_out:
            lines = [f'{shown(path)} ({reason})' for path, reason in sorted(left_out)]
            with open(os.path.join(temporary, _LEFT_OUT), 'w', encoding='utf-8') as stream:
                stream.writelines(f'{line}\n' for line in lines)
        _check_counts(path, classes, labels, test_fraction, left_out[len(misplaced):])
    if left_out:  # as the folder with the list has its name now
        also = f" and {folders} folder{'s' * (folders > 1)} inside the class directories" if folders else ''
        say('warning', f'left out {len(lines) - folders} of {total} files{also}, as {os.path.join(folder, _LEFT_OUT)} '
                       f'lists; the first is {lines[0]}')


def _read(read, pairs, left_out):
    """Yields (label, what `read` makes) of files; those that it refuses are added to `left_out`, with the reason.

    Args:
      read: as for `_make`.
      pairs: (label, path) of each file.
      left_out: a list of (path, reason).
    """
    results = each(read, [path for _, path in pairs], progress=True)
    for (label, path), result in zip(pairs, results, strict=True):
        if isinstance(result, NoPicture):
            left_out.append((path, str(result)))
        else:
            yield label, result
