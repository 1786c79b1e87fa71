"""Which files the user's own code has been executed from: their digests, and the lines of theirs in a traceback."""
import contextlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from cifar10.base import files


class Import(NamedTuple):
    """A module that a user's file has imported from its folder: its name, its SHA-256 then, and the user's file."""
    name: str
    sha256: str | None
    by: str


executed = {}  # path of a file that was executed, also of one that failed -> its SHA-256 then
imported = {}  # file of a module -> Import
loaded = {}  # path of a file that was executed -> what `own.code` keeps of it


@contextlib.contextmanager
def executed_anew() -> Iterator[None]:
    """Context of a run, which executes the user's files itself, as a process of its own would.

    A run within which it begins, as an evaluation in a callback does, later continues with its own files.
    """
    def modules():
        return {each.name: sys.modules.pop(each.name) for each in imported.values() if each.name in sys.modules}
    tables = executed, imported, loaded
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


def sha256(path: str) -> dict[str, str]:
    """Returns the SHA-256 of an executed file and of the imports from its folder, as they were then, by names."""
    folder = os.path.dirname(os.path.abspath(path))
    return {os.path.basename(path): executed[path], **{
        os.path.relpath(file, folder): module.sha256 for file, module in imported.items()
        if module.sha256 and file.startswith(folder + os.sep)}}


def changed(path: str, before: Mapping[str, str]) -> list[str]:
    """Returns which of a user's file and its imports are not as they were.

    Args:
      path: of the file, which may have been moved together with them.
      before: what `sha256` returned then.
    """
    return [name for name, value in before.items() if hash_of(os.path.join(os.path.dirname(path), name)) != value]


def place(frames: Iterable[tuple[str, int]]) -> str:
    """Returns the last of some (file, line) pairs that is in a user's file, as ' (line 12 of mine.py)'; '' if none."""
    own = {*map(os.path.abspath, executed), *imported}
    places = [f' (line {line} of {file})' for file, line in frames if os.path.abspath(file) in own]
    return places[-1] if places else ''


def place_now() -> str:
    """Returns the line of the user's that is being executed, as `place` does."""
    return place((frame.filename, frame.lineno) for frame in traceback.extract_stack())
