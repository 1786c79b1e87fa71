"""metrics.jsonl: what a run or its evaluation measured, for programs to read; a JSON object per line."""
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cifar10.base import files
from cifar10.base.console import Output

NAME = 'metrics.jsonl'
KINDS = TRAIN, EVAL, START, CHECKPOINT = 'train', 'eval', 'start', 'checkpoint'


class Metrics:
    """The metrics file of a train_dir or an eval_dir. Steps ascend, even after kills and resumes.

    Args:
      check: function that is called before each record is written, and raises an error if none may be.
    """

    def __init__(self, directory: str, check: Callable[[], None] = lambda: None):
        self._path = os.path.join(directory, NAME)
        self._check = check

    def drop_after(self, step: int) -> None:
        """Drops a line that a kill cut off, and the records after `step`: these steps are repeated.

        The record of a start is dropped if no step of it remains.
        """
        self._keep(lambda record: record['step'] + (record['kind'] == START) <= step)

    def _keep(self, wanted):
        """Leaves out unwanted records and a line that was cut off; other lines stay."""
        try:
            with files.named(self._path), open(files.opened(self._path), 'rb') as stream:
                lines = stream.readlines()
        except FileNotFoundError:
            return
        kept = [line for line in lines if line.endswith(b'\n') and (
            (record := _record(line)) is None or wanted(record))]
        if kept != lines:
            with files.new_file(self._path) as path, open(path, 'wb') as stream:
                stream.writelines(kept)

    def add(self, kind: str, step: int, **figures: Any) -> dict:
        """Writes a record, as `write` does, and passes it to the output of the process as well."""
        record = self.write(kind, step, **figures)
        Output.current.record(record)
        return record

    def write(self, kind: str, step: int, replacing: Sequence[str] = (), **figures: Any) -> dict:
        """Writes a record, and returns it; its `time` is the wall clock, in seconds since 1970.

        Args:
          kind: one of KINDS.
          step: the step at which the figures were measured.
          replacing: names of figures, or 'step'; earlier records with the same values of all of these are
            dropped.
          figures: the record's figures, by name.
        """
        self._check()
        new = dict(figures, step=step)
        record = record_of(kind, step, **figures)
        line = json.dumps(record).encode() + b'\n'
        if replacing:
            self._keep(lambda record: any(record.get(name) != new[name] for name in replacing))
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        with files.named(self._path), open(files.opened(self._path, flags), 'ab') as stream:
            stream.write(line)
        return record


def record_of(kind: str, step: int, **figures: Any) -> dict:
    """Returns the record that `Metrics.write` writes, as values that JSON can hold."""
    return json.loads(json.dumps(dict(kind=kind, step=int(step), time=round(time.time(), 3), **recorded(figures))))


def recorded(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Returns figures as records have them: each float is `rounded`."""
    return {name: rounded(figure) if isinstance(figure, float) else figure for name, figure in figures.items()}


def rounded(figure: float) -> float | None:
    """Returns a figure rounded to seven digits, as many as a float32 has; None if it is not finite: JSON has no NaN."""
    return float(f'{figure:.7g}') if math.isfinite(figure) else None


def read(directory: str, *kinds: str) -> list[dict]:
    """Returns the records of some kinds in a directory, in the order of their steps; [] if there is no file."""
    path = os.path.join(directory, NAME)
    begins = tuple(f'{{"kind": "{kind}"'.encode() for kind in kinds)  # only such lines are parsed
    try:
        with files.named(path), open(files.opened(path), 'rb') as stream:
            records = [_record(line) for line in stream if line.startswith(begins)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [record for record in records if record]


def last(directory: str, kind: str) -> dict | None:
    """Returns the newest record of a kind in a directory; None if there is none."""
    records = read(directory, kind)
    return records[-1] if records else None


def _record(line):
    """Returns the record in a line; None if the line is cut off, or not from this program."""
    try:
        record = json.loads(line)
        valid = line.endswith(b'\n') and record['kind'] in KINDS and record['step'] >= 0
    except (ValueError, KeyError, TypeError):
        return None
    return record if valid else None
