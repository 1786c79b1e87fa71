"""metrics.jsonl: what a run or its evaluation measured, for programs; a JSON object a line, one line a record."""
import errno
import json
import os
import time
from typing import Any

from cifar10 import files

NAME = 'metrics.jsonl'
TRAIN, EVAL = 'train', 'eval'  # the kinds of records


class Metrics:
    """The file of a directory. Its lines are whole and their steps ascend, over every kill and resume.

    Args:
      directory: train_dir or eval_dir.
    """

    def __init__(self, directory: str):
        self._path = os.path.join(directory, NAME)

    def drop_after(self, step: int) -> None:
        """Drops the records of the steps after `step`, which are taken again, and what a kill left of a line."""
        try:
            with open(self._path, 'rb') as stream:
                lines = stream.readlines()
        except FileNotFoundError:
            return
        kept = [line for line in lines if _step(line) is not None and _step(line) <= step]
        if kept != lines:
            files.replace(self._path, b''.join(kept).decode())

    def add(self, kind: str, step: int, **figures: Any) -> None:
        """Adds a record of a kind, TRAIN or EVAL; `time` is the wall clock, in seconds since 1970."""
        figures = {name: float(f'{figure:.7g}') if isinstance(figure, float) else figure
                   for name, figure in figures.items()}
        line = json.dumps(dict(kind=kind, step=int(step), time=round(time.time(), 3), **figures)).encode() + b'\n'
        with open(self._path, 'ab', buffering=0) as stream:
            length = stream.tell()
            if stream.write(line) < len(line):
                stream.truncate(length)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)


def read(directory: str, kind: str) -> list[dict]:
    """Returns the records of a kind in a directory, in order of their steps; none where there is no file."""
    try:
        with open(os.path.join(directory, NAME), 'rb') as stream:
            records = [json.loads(line) for line in stream if _step(line) is not None]
    except FileNotFoundError:
        return []
    return [record for record in records if record['kind'] == kind]


def _step(line):
    """Returns the step of a record; None if the line is not whole."""
    try:
        return json.loads(line)['step'] if line.endswith(b'\n') else None
    except (ValueError, KeyError, TypeError):
        return None
