"""A user's own images in a folder for each class: which files there are.

The folders are `train/<class>` and `test/<class>`, or just `<class>`.
"""
import functools
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Sequence

from cifar10.base.console import say
from cifar10.base.errors import UsageError, describe_os_error, listed
from cifar10.data.datasets import TEST, TRAIN, Scan
from cifar10.data.photos.picture_files import each, is_picture, shown


def scan(path: str) -> tuple[Scan, Callable]:
    """Finds the files below a user's folder; raises a UsageError if they have another layout.

    Returns:
      (the Scan, whose sources are paths below the folder; the `pixels` of an `own_images.Own`).
    """
    if not os.path.isdir(path):
        raise UsageError(f'--dataset={path} is not a folder or an .npz file; give a folder with a folder of images for '
                         'each class, or arrays in FILE.npz')
    found = [part for part in (TRAIN, TEST) if os.path.isdir(os.path.join(path, part))]
    if len(found) == 1:
        part = found[0]
        other = TEST if part == TRAIN else TRAIN
        raise UsageError(f'--dataset={path} has {part}/ but no {other}/; add {other}/ (a directory such as val/ has to '
                         f'be renamed), or use --dataset={os.path.join(path, part)} to set a fraction of it apart for '
                         f'testing, or, if {part} is a class, rename it')
    folders = {part: os.path.join(path, part) for part in found} or {TRAIN: path}
    classes = _classes(path, folders)
    parts, left_out, states = {}, [], list(classes)
    for part, folder in folders.items():
        entries = [(os.path.join(name, entry), label) for label, name in enumerate(classes)
                   for entry in _names(os.path.join(folder, name))]
        # Not class after class: networks that look at some images before training take the first ones.
        entries.sort(key=lambda entry: hashlib.sha256(os.fsencode(entry[0])).digest())
        parts[part] = []
        for entry, label in entries:
            file = os.path.join(folder, entry)
            states += entry, (of_file := _state(file))
            if of_file is None:
                left_out.append((file, 'a folder, in which nothing is read' if os.path.isdir(file) else 'not a file'))
            else:
                parts[part].append((label, file.removeprefix(path + os.sep)))
    return Scan(tuple(classes), parts, left_out, states), lambda: functools.partial(os.path.join, path)


def _state(path):
    """Returns the size and the time of change of a file; None of something else, such as a folder."""
    try:
        status = os.stat(path)
    except OSError:  # a link that leads nowhere; it may mean a file
        return ''
    # Whole seconds, which every program that copies files with their times keeps.
    return f'{status.st_size} {int(status.st_mtime)}' if stat.S_ISREG(status.st_mode) else None


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


def _names(folder):
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith('.'))
    except PermissionError as error:
        raise UsageError(f'{describe_os_error(error)}; make the folder readable, or remove it') from error


def _class_names(folder):
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
        raise UsageError(f'--dataset={path} has no class directories; put each image into a directory that has the '
                         f'name of its class, such as cat/1.jpg ({TRAIN} and {TEST} are no classes)')
    return classes
