"""The manifest of a folder of photos: its examples, and what a run knows of each file before it reads it.

A manifest is a folder with two files for each part of the data set. One has a row for each example, with what makes the
example what it is, so it is the same on all machines that have the same photos. The other has the times of the files,
which differ from machine to machine; with the sizes in bytes they tell cheaply which files have changed. The operations
that read a manifest in a graph are in `photos`.
"""
import itertools
import multiprocessing.pool
import os
from collections.abc import Iterable
from typing import NamedTuple

from cifar10.base.errors import UsageError
from cifar10.data.records import TEST, TRAIN

EXAMPLES = {part: f'{part}.tsv' for part in (TRAIN, TEST)}
_TIMES = {part: f'{part}_times.txt' for part in (TRAIN, TEST)}
_TEXT = dict(encoding='utf-8', errors='surrogateescape', newline='\n')  # names of files are bytes
_THREADS = 8  # a look at a file on another machine is mostly waiting
_SLAB = 20000  # files that are looked at before the next are read from the manifest

SEPARATORS = '\t\r\n'  # characters that no name of a file can have


class Photo(NamedTuple):
    """What a manifest has of a file.

    Attributes:
      bytes: its size.
      fingerprint: of its contents, as `photos.fingerprint` computes it.
      height, width: of the picture as it is shown, in pixels.
      orientation: how it is stored, as `headers.orientation` returns it.
      path: of the file.
      time: when it was changed, in nanoseconds.
    """
    bytes: int
    fingerprint: int
    height: int
    width: int
    orientation: int
    path: str
    time: int


COLUMNS = ('label', *Photo._fields[:-2], 'file')  # of a row; separated by tabs, after a row with their names


def write(folder: str, part: str, root: str, examples: Iterable[tuple[int, Photo]]) -> None:
    """Writes a part of the manifest.

    Args:
      folder: of the manifest.
      part: TRAIN or TEST.
      root: the folder that the paths in the manifest start from.
      examples: (label, Photo) of each.
    """
    with open(os.path.join(folder, EXAMPLES[part]), 'w', **_TEXT) as rows, \
            open(os.path.join(folder, _TIMES[part]), 'w', **_TEXT) as times:
        rows.write('\t'.join(COLUMNS) + '\n')
        for label, photo in examples:
            fields = (label, *photo[:-2], os.path.relpath(photo.path, root))
            rows.write('\t'.join(map(str, fields)) + '\n')
            times.write(f'{photo.time}\n')


def verified_count(folder: str, part: str, root: str) -> int:
    """Returns how many examples a part of the manifest has, after a look at the size and the time of each file.

    Raises a UsageError if a file is missing or has changed, or if the manifest cannot be read. The arguments are those
    of `write`.
    """
    remedy = f'delete {folder} to have it made again'
    count = 0
    wrong = []
    try:
        with open(os.path.join(folder, EXAMPLES[part]), **_TEXT) as rows, \
                open(os.path.join(folder, _TIMES[part]), **_TEXT) as times, \
                multiprocessing.pool.ThreadPool(_THREADS) as pool:
            if next(rows, '') != '\t'.join(COLUMNS) + '\n':
                raise ValueError('its first row does not have the names of the columns')
            examples = ((root, row, time) for row, time in zip(rows, times, strict=True))
            while slab := list(itertools.islice(examples, _SLAB)):
                wrong += filter(None, pool.map(_difference, slab, chunksize=500))
                count += len(slab)
    except (OSError, ValueError) as error:
        raise UsageError(f'the manifest {os.path.join(folder, EXAMPLES[part])} cannot be read ({error}); {remedy}'
                         ) from error
    if wrong:
        more = f', as have {len(wrong) - 1:,} others' if len(wrong) > 1 else ''
        raise UsageError(f'{wrong[0]} since {folder} was made{more}; {remedy}')
    return count


def _difference(example):
    """Returns what has happened to a file since its row was written, or None."""
    root, row, time = example
    _, size, *_, file = row.rstrip('\n').split('\t')
    path = os.path.join(root, file)
    try:
        status = os.stat(path)
    except OSError:
        return f'{path} has gone'
    return None if (status.st_size, status.st_mtime_ns) == (int(size), int(time)) else f'{path} has changed'
