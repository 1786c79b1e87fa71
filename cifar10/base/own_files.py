"""The Python files of the user's that this process has executed: what they were, and their lines in a traceback."""
import hashlib
import os
from collections.abc import Iterable, Mapping

import tensorflow.compat.v1 as tf

executed = {}  # path of a file -> SHA-256 of it and of what it has imported from its folder, by their names there


def hash_of(path: str) -> str | None:
    """Returns the SHA-256 of a file in hexadecimal, or None if it cannot be read."""
    try:
        with open(path, 'rb') as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return None


def sha256(path: str) -> dict[str, str]:
    """Returns the SHA-256 of a user's file and of its imports, by names, as they were when they were executed."""
    return dict(executed[path])


def changed(path: str, before: Mapping[str, str]) -> list[str]:
    """Returns which of a user's file and its imports are not as they were.

    Args:
      path: of the file, which may have been moved together with them.
      before: what `sha256` returned then.
    """
    return [name for name, value in before.items() if hash_of(os.path.join(os.path.dirname(path), name)) != value]


def place(frames: Iterable[tuple[str, int]]) -> str:
    """Returns the last of some (file, line) pairs that is in a user's file, as ' (line 12 of mine.py)'; '' if none."""
    files = {os.path.join(os.path.dirname(os.path.abspath(path)), name)
             for path, names in executed.items() for name in names}
    places = [f' (line {line} of {file})' for file, line in frames if os.path.abspath(file) in files]
    return places[-1] if places else ''


def place_of(name: str) -> str:
    """Returns the line of the user's that makes an operation of the current graph, as `place` does."""
    try:
        operation = tf.get_default_graph().get_operation_by_name(name)
    except KeyError:  # within a function
        return ''
    return place((frame.filename, frame.lineno) for frame in operation.traceback)
