"""metrics.jsonl: what a run or its evaluation measured, for programs to read; a JSON object per line."""
import contextlib
import json
import math
import os
import shutil
import time
from collections.abc import Sequence
from typing import Any

from cifar10.base import files
from cifar10.base.console import Output

NAME = 'metrics.jsonl'
KINDS = TRAIN, EVAL, START, CHECKPOINT = 'train', 'eval', 'start', 'checkpoint'
_EARLIER = 'cost',  # kinds of records that earlier versions wrote
_BEGIN = b'{"kind": "'  # of the line of a record
_BLOCK = 1 << 16  # bytes that are read at a time, from the end


class Metrics:
    """The metrics file of a directory. Lines are complete and steps ascend, over every kill and resume.

    Args:
      directory: a train_dir or an eval_dir.
    """

    def __init__(self, directory: str):
        self._path = os.path.join(directory, NAME)

    def drop_after(self, step: int) -> None:
        """Drops a line that a kill cut off, and the records after `step`: these steps are taken again.

        A record of a start goes with the last of the steps that it led to.
        """
        def stays(record):
            return record['step'] + (record['kind'] == START) <= step
        # Steps ascend, so what is before a record that stays, stays.
        staying = (begin for begin, line in _backwards(self._path) if (record := _record(line)) and stays(record))
        begin = next(staying, 0)
        lines, kept = self._lines(stays, begin)
        if kept != lines:
            self._replace(kept, begin)

    def _lines(self, wanted, begin=0):
        """Returns (the lines from an offset on, those to keep): the `wanted` records, and complete lines of others."""
        try:
            with files.named(self._path), open(files.opened(self._path), 'rb') as stream:
                stream.seek(begin)
                lines = stream.readlines()
        except FileNotFoundError:
            return [], []
        kept = [line for line in lines if (record := _record(line)) is None or wanted(record)]
        if kept and not kept[-1].endswith(b'\n'):
            tail = kept.pop().rstrip(b'\0')  # zero bytes: lines that a power failure kept off the disk
            is_cut_record = _BEGIN.startswith(tail[:len(_BEGIN)])
            if not is_cut_record:
                kept.append(tail + b'\n')
        return lines, kept

    def _replace(self, lines, begin=0):
        """Replaces the lines from an offset on."""
        with files.new_file(self._path) as path:
            shutil.copyfile(self._path, path)
            with open(path, 'r+b') as stream:
                stream.truncate(begin)
                stream.seek(begin)
                stream.writelines(lines)

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
        new = dict(figures, step=step)
        figures = {name: rounded(figure) if isinstance(figure, float) else figure for name, figure in figures.items()}
        record = dict(kind=kind, step=int(step), time=round(time.time(), 3), **figures)
        line = json.dumps(record).encode() + b'\n'
        lines = kept = None
        if replacing:
            lines, kept = self._lines(lambda record: any(record.get(name) != new[name] for name in replacing))
        if kept != lines:
            self._replace([*kept, line])
        else:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
            with files.named(self._path), open(files.opened(self._path, flags), 'ab', buffering=0) as stream:
                length, rest = stream.tell(), line
                try:
                    while rest:  # what is written in part, as where a disk is full, is an error at the second attempt
                        rest = rest[stream.write(rest):]
                except OSError:
                    if rest != line:
                        stream.truncate(length)  # no part of a line stays
                    raise
        return json.loads(line)


def rounded(figure: float) -> float | None:
    """Returns a figure rounded to seven digits, as many as a float32 has; None if it is not finite: JSON has no NaN."""
    return float(f'{figure:.7g}') if math.isfinite(figure) else None


def read(directory: str, *kinds: str) -> list[dict]:
    """Returns the records of some kinds in a directory, in the order of their steps; [] if there is no file."""
    path, begins = os.path.join(directory, NAME), tuple(map(_begin, kinds))
    try:
        with files.named(path), open(files.opened(path), 'rb') as stream:
            records = [_record(line) for line in stream if line.startswith(begins)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [record for record in records if record]


def last(directory: str, kind: str) -> dict | None:
    """Returns the newest record of a kind in a directory; None if there is none."""
    lines = (line for _, line in _backwards(os.path.join(directory, NAME)) if line.startswith(_begin(kind)))
    return next(filter(None, map(_record, lines)), None)


def _begin(kind):
    """Returns the bytes that the line of a record begins with."""
    return _BEGIN + f'{kind}"'.encode()


def _backwards(path):
    """Yields (offset, line) for each line of a file, the last one first, and reads no more of it than that takes."""
    # Not mapped into memory: where the disk fails, the system would end this process without a word.
    with contextlib.suppress(FileNotFoundError), files.named(path), open(files.opened(path), 'rb') as stream:
        begin, content = stream.seek(0, os.SEEK_END), b''  # what was read and not yielded, from `begin` on
        while begin or content:
            cut = content.rfind(b'\n', 0, len(content) - 1) + 1
            if cut or not begin:
                yield begin + cut, content[cut:]
                content = content[:cut]
            else:
                size = min(begin, _BLOCK)
                begin = stream.seek(begin - size)
                content = stream.read(size) + content


def _record(line):
    """Returns the record in a line; None if the line is cut off, or not from this program."""
    try:
        record = json.loads(line)
        valid = line.endswith(b'\n') and record['kind'] in KINDS + _EARLIER and record['step'] >= 0
    except (ValueError, KeyError, TypeError):
        return None
    return record if valid else None
