"""The executed files of a user's code: their digests, and their lines in a traceback."""
import contextlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from cifar10.base import files


class Import(NamedTuple):
    """A module that a user's file has imported from its folder: its name, its SHA-256, and the user's file."""
    name: str
    sha256: str | None
    by: str


executed: dict[str, str | None] = {}  # path of an executed file, even if it failed -> its SHA-256 at that time
imported: dict[str, Import] = {}  # file of a module -> Import
loaded: dict[str, Any] = {}  # path of an executed file -> the state of `own.code`


@contextlib.contextmanager
def executed_anew() -> Iterator[None]:
    """Context in which a run executes the user's files again, as in a new process.

    The previous files and modules return at the end: a run may begin within another run, such as an evaluation in a
    callback.
    """
    def modules():
        return {module.name: sys.modules.pop(module.name) for module in imported.values() if module.name in sys.modules}
    tables: tuple[dict, ...] = executed, imported, loaded
    before, modules_before = [dict(table) for table in tables], modules()
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        modules()
        sys.modules.update(modules_before)
        for table, entries in zip(tables, before):
            table.clear()
            table.update(entries)


def hash_of(path: str) -> str | None:
    """Returns the SHA-256 of a file in hexadecimal, or None if it cannot be read."""
    with contextlib.suppress(OSError):
        return files.sha256(path)
    return None


def sha256(path: str) -> dict[str, str | None]:
    """Returns the SHA-256 of an executed file and of its imports at that time, by relative path."""
    folder = os.path.dirname(os.path.abspath(path))
    return {os.path.basename(path): executed[path], **{
        os.path.relpath(file, folder): module.sha256 for file, module in imported.items()
        if module.sha256 and file.startswith(folder + os.sep)}}


def changed(path: str, before: Mapping[str, str | None]) -> list[str]:
    """Returns the names of a user's file and imports that have changed.

    Args:
      path: the file's path, which may have moved together with its imports.
      before: the earlier result of `sha256`.
    """
    return [name for name, value in before.items() if hash_of(os.path.join(os.path.dirname(path), name)) != value]


def place(frames: Iterable[tuple[str, int | None]]) -> str:
    """Returns the last (file, line) pair in a user's file, as ' (line 12 of mine.py)'; '' if there is none."""
    own = {*map(os.path.abspath, executed), *imported}
    places = [f' (line {line} of {file})' for file, line in frames if os.path.abspath(file) in own]
    return places[-1] if places else ''


def place_now() -> str:
    """Returns the current line of a user's file, in the form of `place`."""
    return place((frame.filename, frame.lineno) for frame in traceback.extract_stack())
