"""Writes and reads metrics.jsonl, the log of a run or of its evaluations, with one JSON object per line."""
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cifar10.base import files, locks
from cifar10.base.console import Output

if TYPE_CHECKING:
    from cifar10.run.events import Events

NAME = 'metrics.jsonl'
KINDS = TRAIN, EVAL, START, CHECKPOINT = 'train', 'eval', 'start', 'checkpoint'


class Log:
    """Sends entries to metrics.jsonl, TensorBoard and the caller's function. Steps ascend, even after kills.

    Args:
      directory: the train_dir or the eval_dir, which holds the file.
      curves: kind of entry -> the TensorBoard event file for its figures.
      check: function that the log calls before each write; raises an error to prevent it.
    """

    def __init__(self, directory: str, curves: Mapping[str, 'Events'] | None = None,
                 check: Callable[[], None] = lambda: None):
        self._path = os.path.join(directory, NAME)
        self._curves = curves or {}
        self._check = check

    def drop_after(self, step: int) -> None:
        """Drops a truncated line and the entries after `step`, because the run repeats these steps.

        Also drops the record of a start without remaining steps.
        """
        for events in self._curves.values():
            events.drop_after(step)
        self._keep(lambda record: record['step'] + (record['kind'] == START) <= step)

    def _keep(self, wanted):
        """Removes unwanted records and a truncated line; keeps all other lines."""
        try:
            with files.named(self._path), open(locks.opened(self._path), 'rb') as stream:
                lines = stream.readlines()
        except FileNotFoundError:
            return
        kept = [line for line in lines if line.endswith(b'\n') and (
            (record := _record(line)) is None or wanted(record))]
        if kept != lines:
            with files.new_file(self._path) as path, open(path, 'wb') as stream:
                stream.writelines(kept)

    def write(self, kind: str, step: int, figures: Mapping[str, float] | None = None,
              curves: Mapping[str, float] | None = None, replacing: Sequence[str] = (), told: bool = True,
              **facts: Any) -> dict:
        """Writes an entry and returns its record. `time` is the wall clock in seconds since 1970.

        Args:
          figures, facts: contents of the record, by name.
          curves: the figures for TensorBoard; default: `figures`.
          replacing: names of facts, or 'step'; drops earlier records with the same values of all these names.
          told: whether to call the caller's function now; it may take long and raise any error.
        """
        self._check()
        record = record_of(kind, step, figures, **facts)
        line = json.dumps(record).encode() + b'\n'
        if replacing:
            self._keep(lambda earlier: any(earlier.get(name) != record[name] for name in replacing))
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        with files.named(self._path), open(locks.opened(self._path, flags), 'ab') as stream:
            stream.write(line)
        if kind in self._curves:
            self._curves[kind].add_figures((figures or {}) if curves is None else curves, step)
        if told:
            Output.current.record(record)
        return record


def record_of(kind: str, step: int, figures: Mapping[str, float] | None = None, **facts: Any) -> dict:
    """Returns the record of an entry as JSON values, with each float `rounded`."""
    values = {name: rounded(value) if isinstance(value, float) else value
              for name, value in {**(figures or {}), **facts}.items()}
    head = dict(kind=kind, step=int(step), time=round(time.time(), 3))  # `read` looks at the beginnings of lines
    return json.loads(json.dumps({**head, **values, **head}))


def rounded(figure: float) -> float | None:
    """Rounds a figure to seven digits, as a float32 has; returns None if it is not finite, because JSON has no NaN."""
    return float(f'{figure:.7g}') if math.isfinite(figure) else None


def fraction(figure: float) -> str:
    """Formats a fraction with three digits; only 1 becomes 1.000."""
    return f'{0.999 if 0.999 < figure < 1 else figure:.3f}'


def read(directory: str, *kinds: str) -> list[dict]:
    """Returns the records of the given kinds in a directory, in step order; [] without a file."""
    path = os.path.join(directory, NAME)
    begins = tuple(f'{{"kind": "{kind}"'.encode() for kind in kinds)  # only such lines are parsed
    try:
        with files.named(path), open(locks.opened(path), 'rb') as stream:
            records = [_record(line) for line in stream if line.startswith(begins)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [record for record in records if record]


def last(directory: str, kind: str) -> dict | None:
    """Returns the newest record of a kind in a directory, or None."""
    records = read(directory, kind)
    return records[-1] if records else None


def _record(line):
    """Returns the record in a line; None if the line is truncated or not from this program."""
    try:
        record = json.loads(line)
        valid = line.endswith(b'\n') and record['kind'] in KINDS and record['step'] >= 0
    except (ValueError, KeyError, TypeError):
        return None
    return record if valid else None
