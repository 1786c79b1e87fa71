"""A user's own images: a folder for each class.

Up to 64 pixels they are converted once to CIFAR's binary layout, at the size of the run. Larger ones stay in their
files, and a manifest is made once.

The folders are `train/<class>` and `test/<class>`, or just `<class>`; then a fraction of the images of each
class is set apart for testing.
"""
import collections
import dataclasses
import functools
import hashlib
import os
import pickle
import unicodedata

from cifar10.base.console import say
from cifar10.base.errors import UsageError
from cifar10.base.files import new_folder
from cifar10.data import records
from cifar10.data.augment import Augmentation
from cifar10.data.photos import manifest, pictures
from cifar10.data.photos.decoding import Preparation
from cifar10.data.photos.photos import Examiner, Photos
from cifar10.data.records import CLASSES_FILE, LARGEST, SIZE, TEST, TEST_FILES, TRAIN, TRAIN_FILES, Dataset

_CONVERTED = 'cifar-bin'  # names of folders with converted files begin with it; they lie beside the class directories
_UNPRINTABLE = ('Cc', 'Zl', 'Zp')  # categories of Unicode: what a terminal obeys, and what ends a line
_VALIDATION = ('val', 'valid', 'validation')  # what others name their second part
_LEAST_IMAGES = len(TRAIN_FILES)  # of the training part, so that no file is empty
_LEFT_OUT = 'left-out.txt'  # has the files that could not be decoded, if there are any
_SCRATCH = 'scratch'  # the file that holds what was read until the examples are divided


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
        alike = [name for name in _VALIDATION if os.path.isdir(os.path.join(path, name))]
        if alike:
            raise UsageError(f'--dataset={path} has {part}/ and {alike[0]}/ but no {other}/; rename {alike[0]}/ to '
                             f'{other}/')
        raise UsageError(f'--dataset={path} has {part}/ but no {other}/; add {other}/, or use '
                         f'--dataset={os.path.join(path, part)} to set a fraction of it apart for testing, or, if '
                         f'{part} is a class, rename it')
    return _ImageFolder(os.path.join(path, _CONVERTED), functools.partial(_convert, path, None, SIZE), path=path,
                        is_divided=bool(parts))


@dataclasses.dataclass(frozen=True)
class _ImageFolder(Dataset):
    """The images below a folder.

    Attributes:
      path: the folder.
      is_divided: whether it has train/ and test/.
      test_fraction: if it has not, the fraction of the images of each class that is for testing; otherwise None.
    """
    _WHAT, _MADE, _REMEDY = 'the converted images are', 'the conversion', 'convert them again'
    _MOST_CLASSES = 256  # the label of a record is a byte

    how: str = 'converting it'
    path: str = ''
    is_divided: bool = True
    test_fraction: float | None = None

    def configured(self, test_fraction, image_size):
        if self.is_divided:
            test_fraction = None
        elif test_fraction is None:
            raise ValueError(f'{self.path} is not divided into train/ and test/, so it needs a test_fraction')
        name = os.path.join(self.path, _CONVERTED)
        if test_fraction is not None:
            name += f'-{test_fraction:g}'
        if image_size > LARGEST:
            return _PhotoFolder(name + '-manifest', functools.partial(_make_manifest, self.path, test_fraction),
                                files={part: (file,) for part, file in manifest.EXAMPLES.items()}, path=self.path,
                                is_divided=self.is_divided, test_fraction=test_fraction)
        if image_size != SIZE:
            name += f'-{image_size}px'
        return dataclasses.replace(self, folder=name, test_fraction=test_fraction, size=image_size,
                                   make=functools.partial(_convert, self.path, test_fraction, image_size))

    def check(self):
        classes, _ = _layout(self.path, self.test_fraction)
        if self._MOST_CLASSES and len(classes) > self._MOST_CLASSES:
            raise UsageError(f'--dataset={self.path} has {len(classes)} class directories; up to '
                             f'--image_size={LARGEST} there may be {self._MOST_CLASSES}, above it any number')
        if not os.access(self.path, os.W_OK):
            raise UsageError(f'--dataset={self.path} is not writable, but {self._WHAT} stored there; use a writable '
                             'directory with symbolic links to its class directories')

    def expected(self):
        classes, folders = _layout(self.path, self.test_fraction)
        files = {part: [(label, path) for label, path in _files(folder, classes) if not os.path.isdir(path)]
                 for part, folder in folders.items()}
        parts = _parts(self.path, classes, files, self.test_fraction)
        return tuple(classes), {part: len(examples) for part, examples in parts.items()}

    def read_classes(self, folder):
        return records.read_classes(folder)

    def notices(self):
        left_out = os.path.join(self.folder, _LEFT_OUT)
        if os.path.exists(left_out):
            with open(left_out, encoding='utf-8') as stream:
                yield f'left out   {sum(1 for _ in stream)} files, as {left_out} lists them'
        folders = [self.path]
        if self.is_divided:
            folders = [os.path.join(self.path, part) for part in (TRAIN, TEST)]
        class_folders = [os.path.join(folder, name) for folder in folders for name in _class_names(folder)]
        newest = max(map(self._last_change, class_folders), default=0)
        if newest > os.path.getmtime(self.folder):
            yield (f'warning: images were added, removed or changed after {self._MADE}; delete {self.folder} to '
                   f'{self._REMEDY} (a run can go on only with the same classes and number of training images)')

    @staticmethod
    def _last_change(class_folder):
        """Returns when the last file was added to a folder, removed from it or changed."""
        files = [entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(class_folder)]
        return max([os.path.getmtime(class_folder), *files])


@dataclasses.dataclass(frozen=True)
class _PhotoFolder(_ImageFolder):
    """The images below a folder, which stay in their files."""
    how: str = 'decoding each file once for a manifest'
    _WHAT, _MADE, _REMEDY = 'the manifest of its photos is', 'the manifest was made', 'have it made again'
    _MOST_CLASSES = None
    _last_change = staticmethod(os.path.getmtime)  # the manifest has the times of the files

    def records(self, name, folder, part, count, classes, image_size):
        return Photos(name, (os.path.join(folder, *self.files[part]),), count, classes, size=image_size, root=self.path)

    def verified_count(self, folder, part, num_classes):
        return manifest.verified_count(folder, part, self.path)


def _class_names(folder):
    """Returns the sorted names of the class directories in a folder, without hidden and converted ones."""
    return sorted(name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name))
                  and not name.startswith('.')
                  and not (name.startswith(_CONVERTED) and os.path.isfile(os.path.join(folder, name, CLASSES_FILE))))


def _check_name(folder, name):
    """Raises a UsageError if a class directory in `folder` has a name that no class can have."""
    if any(unicodedata.category(character) in _UNPRINTABLE for character in name):
        problem = 'has control characters in its name; rename it'
    elif name != name.strip():
        problem = 'has a name that begins or ends with a space; rename it'
    elif name.startswith(_CONVERTED):
        problem = 'has a name that is reserved for converted images; rename or remove it'
    else:
        return
    raise UsageError(f'the class directory {name!r} in {folder} {problem}')


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
    classes = _class_names(folders[TRAIN])
    for part, folder in folders.items():
        for name in _class_names(folder):
            _check_name(folder, name)
            if test_fraction is not None and name.lower() in (TRAIN, TEST):
                raise UsageError(f'--dataset={path} has {name}/ among its class directories; rename it to '
                                 f'{name.lower()} if it holds class directories, or else to another name')
        if test_fraction is None and not _class_names(folder):
            raise UsageError(f'--dataset={path} has no class directories in {part}/; put the images into '
                             f'{part}/<class>, or, if {part} is a class, rename it')
    for folder in folders.values():
        odd = set(_class_names(folder)) ^ set(classes)
        if odd:
            raise UsageError(f'class {min(odd)} is only in one of {TRAIN}/ and {TEST}/ in --dataset={path}; give both '
                             'the same classes')
    if len(classes) < 2:
        raise UsageError(f'--dataset={path} {_too_few(folders[TRAIN], classes)}')
    return classes, folders


def _too_few(folder, classes):
    """Says what a folder with fewer than two class directories has instead, and the change that makes it right."""
    files = sum(not entry.is_dir() for entry in os.scandir(folder) if not entry.name.startswith('.'))
    if not classes:
        return (f'has {files:,} files but no class directories; put each image into a directory that has the name of '
                'its class')
    only = os.path.join(folder, classes[0])
    deeper = _class_names(only)
    if len(deeper) > 1:
        return f'has one directory, {classes[0]}/, in which there are {len(deeper)}; use --dataset={only}/'
    return f'has one class directory, {classes[0]}/; add a directory with images of another class'


def _convert(path, test_fraction, size, folder):
    """Converts the images below `path` to records of square images of a size in a new folder."""
    def write(temporary, part, count, examples):
        rows = (bytes([label]) + image.transpose(2, 0, 1).tobytes() for label, image in examples)
        records.write(temporary, {TRAIN: TRAIN_FILES, TEST: TEST_FILES}[part], count, rows)
    _make(path, test_fraction, folder, 'converting', f' to {size}x{size} pixels',
          lambda temporary: pictures.Decoder(Preparation(size, Augmentation(), size)), write)


def _make_manifest(path, test_fraction, folder):
    """Examines the images below `path`, and writes a manifest of them into a new folder."""
    def write(temporary, part, count, examples):
        del count
        manifest.write(temporary, part, path, examples)
    _make(path, test_fraction, folder, 'examining ', '; later runs look only at sizes and times',
          lambda temporary: Examiner(temporary, folder), write)


def _make(path, test_fraction, folder, doing, how, new_reader, write):
    """Makes a folder of what a reader makes of the images below `path`, of which few are in memory at a time.

    Args:
      doing, how: what the line says of it, before and after the files.
      new_reader: function (temporary folder) -> a `pictures.Reader`.
      write: function (temporary folder, part, count, (label, what the reader made) pairs) that writes the files of a
        part.
    """
    classes, folders = _layout(path, test_fraction)
    files = {part: _files(part_folder, classes) for part, part_folder in folders.items()}
    say(f'{doing} {sum(map(len, files.values())):,} files of {len(classes)} classes in {path}{how}')
    with new_folder(folder) as temporary:
        scratch = os.path.join(temporary, _SCRATCH)
        numbers, left_out = _read(new_reader(temporary), files, scratch)
        for part, pairs in _parts(path, classes, numbers, test_fraction).items():
            write(temporary, part, len(pairs), _examples(scratch, {number for _, number in pairs}))
        os.remove(scratch)
        records.write_classes(temporary, classes)
        if left_out:
            with open(os.path.join(temporary, _LEFT_OUT), 'w', encoding='utf-8') as stream:
                stream.writelines(f'{line}\n' for line in left_out)
    if len(left_out) > 1:
        say(f'left out   these {len(left_out)} files, as {os.path.join(folder, _LEFT_OUT)} lists them')


def _parts(path, classes, examples, test_fraction):
    """Returns the examples of both parts; raises a UsageError if a part or a class has too few.

    Args:
      path: the folder of the images, for messages.
      classes: the names of the classes.
      examples: {part: its (label, image or path) pairs}; with a test fraction, all are in the part TRAIN.
      test_fraction: the fraction to move to the part TEST, or None if the examples are divided already.
    """
    if test_fraction is not None:
        examples = _divide(examples[TRAIN], test_fraction)
    labels = {part: [label for label, _ in pairs] for part, pairs in examples.items()}
    for part in examples:
        for missing in set(range(len(classes))) - set(labels[part]):
            count = sum(part_labels.count(missing) for part_labels in labels.values())
            kind = 'training' if part == TRAIN else 'test'
            folder = os.path.join(path, '' if test_fraction is not None else part, classes[missing])
            if deeper := _class_names(folder):
                raise UsageError(f'--dataset={path}: class {classes[missing]} has no {kind} image, but directories '
                                 f'such as {deeper[0]}/; move their images into {folder}')
            change = ', lower --test_fraction' if test_fraction is not None and count > 1 else ''
            raise UsageError(f'--dataset={path}: class {classes[missing]} has no {kind} image; give it more{change}, '
                             'or remove its directory')
    if len(examples[TRAIN]) < _LEAST_IMAGES:
        raise UsageError(f'--dataset={path} has {len(examples[TRAIN])} training images; at least {_LEAST_IMAGES} are '
                         'needed')
    return examples


def _files(folder, classes):
    """Returns (label, path) of all files, in an order that looks random but is always the same."""
    files = [(label, os.path.join(folder, name, file)) for label, name in enumerate(classes)
             for file in os.listdir(os.path.join(folder, name)) if not file.startswith('.')]

    def digest(labelled_path):
        _, path = labelled_path
        return hashlib.sha256(os.fsencode(os.path.relpath(path, folder))).digest()
    # Not class after class: networks that look at some images before training take the first ones.
    return sorted(files, key=digest)


def _divide(examples, test_fraction):
    """Returns the examples of each part: of every class a fraction is for testing, but at least one example."""
    counts = collections.Counter(label for label, _ in examples)
    tests_to_come = {label: max(round(test_fraction * count), 1) for label, count in counts.items()}
    parts = {TRAIN: [], TEST: []}
    for label, image in examples:
        parts[TEST if tests_to_come[label] > 0 else TRAIN].append((label, image))
        tests_to_come[label] -= 1
    return parts


def _read(reader, files, scratch):
    """Reads files, and writes what the reader makes of them to a scratch file; warns about those that it refuses.

    Args:
      reader: a `pictures.Reader`.
      files: {part: (label, path) pairs}.
      scratch: the path of the new file.

    Returns:
      ({part: (label, number of the example in the scratch file) pairs}, lines with the path of each file that was
      refused and the reason).
    """
    numbers, failures = {}, []
    count = 0
    with open(scratch, 'wb') as stream:
        for part, pairs in files.items():
            numbers[part] = []
            results = reader.each([path for _, path in pairs], progress=True)
            for (label, path), result in zip(pairs, results, strict=True):
                if isinstance(result, pictures.NoPicture):
                    failures.append((path, result))
                    continue
                pickle.dump((label, result), stream)
                numbers[part].append((label, count))
                count += 1
    left_out = [f'{pictures.shown(path)} ({error})' for path, error in sorted(failures, key=lambda failure: failure[0])]
    if left_out:
        say(f'warning: left out {len(left_out)} of {sum(map(len, files.values()))} files; the first is {left_out[0]}')
    return numbers, left_out


def _examples(scratch, numbers):
    """Yields the examples of a scratch file that have certain numbers: (label, what a reader made) pairs."""
    with open(scratch, 'rb') as stream:
        for number in range(max(numbers) + 1):
            example = pickle.load(stream)
            if number in numbers:
                yield example
