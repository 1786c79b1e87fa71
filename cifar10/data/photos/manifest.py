"""The manifest of a folder of photos: its examples, and the size and fingerprint of each file.

A manifest is a folder with two files for each part of the data set. One has a row for each example, with what makes the
example what it is, so it is the same on all machines that have the same photos. The other has the sizes and times of
the user's files, which tell cheaply which of them have changed. The operations that read a manifest in a graph are in
`photos`.
"""
import itertools
import multiprocessing.pool
import os
from collections.abc import Collection, Iterable
from typing import NamedTuple

from cifar10.base.errors import UsageError
from cifar10.base.files import named

_TEXT = dict(encoding='utf-8', errors='surrogateescape', newline='\n')  # names of files are bytes
_THREADS = 8  # a look at a file on another machine is mostly waiting
_SLAB = 20000  # files that are looked at before the next are read from the manifest

SEPARATORS = '\t\r\n'  # characters that no name of a file can have


class Photo(NamedTuple):
    """The entry of a photo in a manifest.

    Attributes:
      fingerprint: of the contents of the file at `path`, as `photos.fingerprint` computes it.
      height, width: of the picture as it is shown, in pixels.
      orientation: how it is stored, as `headers.read` returns it.
      path: of the file that is read: the user's, or the PNG that was made of it.
      bytes: the size of the user's file.
      time: when it was changed, in nanoseconds.
      source: its path.
    """
    fingerprint: int
    height: int
    width: int
    orientation: int
    path: str
    bytes: int
    time: int
    source: str


COLUMNS = ('label', *Photo._fields[:4], 'file')  # of a row; separated by tabs, after a row with their names


def write(path: str, root: str, examples: Iterable[tuple[int, Photo]]) -> None:
    """Writes a part of the manifest.

    Args:
      path: of its file that has a row for each example.
      root: the folder that the paths in the manifest start from.
      examples: (label, Photo) of each.
    """
    with open(path, 'w', **_TEXT) as rows, open(_sources(path), 'w', **_TEXT) as sources:
        rows.write('\t'.join(COLUMNS) + '\n')
        for label, photo in examples:
            fields = (label, *photo[:4], os.path.relpath(photo.path, root))
            rows.write('\t'.join(map(str, fields)) + '\n')
            sources.write(f'{photo.bytes}\t{photo.time}\t{os.path.relpath(photo.source, root)}\n')


def _sources(path):
    """Returns the path of the sizes and times of the files whose rows are at `path`."""
    return os.path.splitext(path)[0] + '_sources.tsv'


def source(path: str, example: int) -> str:
    """Returns the path of the user's file of an example, below the folder of the photos; `path` is as for `write`."""
    path = _sources(path)
    with named(path), open(path, **_TEXT) as sources:
        return next(itertools.islice(sources, example, None)).rstrip('\n').split('\t')[2]


def read_for(path: str, root: str, examples: Collection[int]) -> list[str]:
    """Returns the paths of the files from which examples are read; the other arguments are those of `write`."""
    with named(path), open(path, **_TEXT) as rows:
        columns = [row.rstrip('\n').split('\t') for row in rows][1:]
    return [os.path.join(root, columns[example][COLUMNS.index('file')]) for example in examples]


def fingerprints(path: str) -> set[int]:
    """Returns the fingerprints of the photos whose rows are in a file of the manifest."""
    with named(path), open(path, **_TEXT) as rows:
        next(rows)
        return {int(row.split('\t')[COLUMNS.index('fingerprint')]) for row in rows}


def verified_count(path: str, root: str) -> int:
    """Returns how many examples a part of the manifest has, after a look at the size and the time of each file.

    Raises a UsageError if a file is missing or has changed, or if the manifest cannot be read. The arguments are those
    of `write`.
    """
    folder = os.path.dirname(path)
    remedy = f'delete {folder} to have it made again'
    count = 0
    try:
        with open(path, **_TEXT) as rows, open(_sources(path), **_TEXT) as sources, \
                multiprocessing.pool.ThreadPool(_THREADS) as pool:
            if next(rows, '') != '\t'.join(COLUMNS) + '\n':
                raise ValueError('its first row does not have the names of the columns')
            examples = ((root, source) for _, source in zip(rows, sources, strict=True))
            while slab := list(itertools.islice(examples, _SLAB)):
                for change in filter(None, pool.map(_difference, slab, chunksize=500)):
                    raise UsageError(f'{change} since {folder} was made; {remedy}')
                count += len(slab)
    except (OSError, ValueError) as error:
        raise UsageError(f'the manifest {path} cannot be read ({error}); {remedy}') from error
    return count


def _difference(example):
    """Returns a phrase for the change of a file since the manifest was made, or None."""
    root, source = example
    size, time, file = source.rstrip('\n').split('\t')
    path = os.path.join(root, file)
    try:
        status = os.stat(path)
    except OSError:
        return f'{path} has gone'
    return None if (status.st_size, status.st_mtime_ns) == (int(size), int(time)) else f'{path} has changed'
