"""Finds a user's images in a folder for each class: `train/<class>` and `test/<class>`, or just `<class>`."""
import functools
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Sequence

from cifar10.base.console import say
from cifar10.base.errors import UsageError, describe_os_error, listed
from cifar10.data.datasets import TEST, TRAIN, Scan
from cifar10.data.photos.picture_files import each, has_picture_name, is_picture, shown


def scan(path: str) -> tuple[Scan, Callable]:
    """Finds the files below a user's folder; raises a UsageError if its layout is wrong.

    Returns:
      (a Scan with paths below the folder as sources; the `pixels` of an `own_images.Own`).
    """
    if not os.path.isdir(path):
        raise UsageError(f'--dataset={path} is not a folder or an .npz file; give a folder with a folder of images for '
                         'each class, or arrays in FILE.npz')
    present = [part for part in (TRAIN, TEST) if os.path.isdir(os.path.join(path, part))]
    if len(present) == 1:
        part = present[0]
        other = TEST if part == TRAIN else TRAIN
        raise UsageError(f'--dataset={path} has {part}/ but no {other}/; add {other}/ (or rename val/), or use '
                         f'--dataset={os.path.join(path, part)} to test on a fraction of it')
    folders = {part: os.path.join(path, part) for part in present} or {TRAIN: path}
    classes = _classes(path, folders)
    parts, left_out, states = dict[str, list](), [], list(classes)
    for part, folder in folders.items():
        entries = [(os.path.join(name, entry), label) for label, name in enumerate(classes)
                   for entry in _names(os.path.join(folder, name))]
        # Shuffled, because some networks sample the first images before training.
        entries.sort(key=lambda entry: hashlib.sha256(os.fsencode(entry[0])).digest())
        parts[part] = []
        for entry, label in entries:
            file = os.path.join(folder, entry)
            states += entry, (state := _state(file))
            if state is None:
                left_out.append((file, 'a subfolder, which is ignored' if os.path.isdir(file) else 'not a file'))
            else:
                parts[part].append((label, file.removeprefix(path + os.sep)))
    return Scan(tuple(classes), parts, left_out, states), lambda: functools.partial(os.path.join, path)


def _state(path):
    """Returns the size and modification time of a file; None if the path is not a file."""
    try:
        status = os.stat(path)
    except OSError:  # a broken link, probably to a file
        return ''
    # In seconds, because some programs that copy files truncate the times.
    return f'{status.st_size} {int(status.st_mtime)}' if stat.S_ISREG(status.st_mode) else None


def pictures(paths: Sequence[str]) -> list[str]:
    """Returns the files to classify: the given files, without a check, and all pictures below the given folders.

    The files of a folder are sorted, without hidden files and files that are not pictures.

    Raises:
      UsageError: a folder has no picture, or cannot be read.
    """
    chosen = []
    for path in paths:
        if not os.path.isdir(path):
            chosen.append(path)
            continue
        files = list(_files_below(path, set()))
        are_pictures = list(each(is_picture, files))
        if not any(are_pictures):
            raise UsageError(f'--image={path} has no pictures; give another folder, or files')
        if skipped := [file for file, is_one in zip(files, are_pictures) if not is_one]:
            say('warning', f'skipping {len(skipped)} of {len(files)} files in {path} that are not pictures, such as '
                           f'{shown(skipped[0])}')
        chosen += itertools.compress(files, are_pictures)
    return chosen


def refuse_among_pictures(path: str, flag: str) -> None:
    """Raises a UsageError if a directory has pictures or folders of pictures, or is among nothing else."""
    path = os.path.abspath(path)
    found = [each for each in [*_paths_in(path), *_paths_in(os.path.join(path, TRAIN))] if _has_pictures(each)]
    beside = [each for each in _paths_in(os.path.dirname(path)) if each != path]
    if not found and len(beside) > 1 and all(map(_has_pictures, beside)):
        found = beside
    if found:
        raise UsageError(f'{flag}={path} is among pictures, such as {found[0]}; use a directory elsewhere')


def _paths_in(folder):
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if not name.startswith('.')]
    except OSError:
        return []


def _has_pictures(path):
    """Returns whether a path is a picture, or a folder with pictures, judged by names."""
    return any(map(has_picture_name, [path, *_paths_in(path)]))


def _files_below(folder, seen):
    """Yields the paths of all files below a folder; skips folders in `seen`, because links may form a cycle."""
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
    """Returns the names of the classes, given the folder of each part; raises a UsageError if they are not valid."""
    names = {part: _class_names(folder) for part, folder in folders.items()}
    for part, folder in folders.items():
        for name in names[part]:
            if name.splitlines(keepends=True) != [name.strip()]:  # the file of the classes has one name per line
                raise UsageError(f'the class directory {name!r} in {folder} has a line break in its name, or a leading '
                                 'or trailing space; rename it')
            if folder == path and name.lower() in (TRAIN, TEST):
                raise UsageError(f'--dataset={path} has {name}/ among its class directories; rename it to '
                                 f'{name.lower()} if it holds class directories, or else to another name')
    classes = names[TRAIN]
    if set(classes) != set(names.get(TEST, classes)):
        only = [f"only {part}/ has {listed(odd)}" for part, other in ((TRAIN, TEST), (TEST, TRAIN))
                if (odd := [name for name in names[part] if name not in names[other]])]
        raise UsageError(f"--dataset={path} has different classes: {', '.join(only)}; use the same classes in both")
    if not classes:
        raise UsageError(f'--dataset={path} has no class directories; put each image into a directory with the name of '
                         f'its class, such as cat/1.jpg (not {TRAIN} or {TEST})')
    return classes
