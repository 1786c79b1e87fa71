"""Takes snapshots of the folder of a run.

Only this module lists such a folder, reads its config.json, and knows the names of a run's files. `takeover` decides
from a Folder. Importing this module must not import TensorFlow.
"""
import contextlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from cifar10.base import files, locks
from cifar10.base.directories import CURVES, EVALUATIONS
from cifar10.base.errors import UsageError, describe_os_error
from cifar10.run import metrics
from cifar10.run.record import RunRecord

PROGRAM = 'cifar10 multi_gpu_train'  # in config.json
SETTINGS = 'config.json'
BEST = 'best.json'  # names the best checkpoint, with the figures of its evaluation
LIST = 'checkpoint'  # TensorFlow's list of the checkpoints
CHECKPOINT = 'model.ckpt'  # before '-<step>' and a suffix
EVENTS_SUFFIX = '.cifar10'
_WITHOUT_INDEX = r'data-\d{5}-of-\d{5}'  # a kill during a write or a removal leaves these
_PART = rf'\.(?:index|meta|{_WITHOUT_INDEX})'  # the suffixes of a checkpoint's files
_PART_OF_ANY = rf'{re.escape(CHECKPOINT)}-\d+{_PART}'
# With the files of TensorFlow's V1 format: one without a suffix, or several with numbers.
_OF_CHECKPOINT = rf'{re.escape(CHECKPOINT)}(-\d+)?({_PART}|-\d{{5}}-of-\d{{5}})?'
_TEMPORARY = r'\.tempstate\d+'  # TensorFlow's suffix for unfinished files
_REPLACED = rf'(?:{re.escape(SETTINGS)}|{re.escape(metrics.NAME)}|{LIST})'  # by `files.replace`
_PRIVATE = files.private_names(rf'{_REPLACED}|{re.escape(BEST)}')
_UNFINISHED = rf'\.?{_PART_OF_ANY}{_TEMPORARY}|\.{_PART_OF_ANY}|{_PRIVATE}'


class Folder(NamedTuple):
    """A snapshot of the folder of a run.

    Attributes:
      path: the folder's path, which need not exist.
      flag: the flag for the folder, for messages; '' if another flag names a checkpoint in it.
      files: the names of the regular files.
      checkpoints: the prefixes of the checkpoints, oldest step first.
      record: the newest record of the run; None if there is none, as in a folder of the tutorial's scripts.
      starts: the records in metrics.jsonl of each start that took steps, in order.
      recorded: the steps of the checkpoints in metrics.jsonl.
      evaluations: the records in metrics.jsonl of the run's evaluations, in step order.
      best: contents of best.json: the step of the best checkpoint and the figures of its evaluation; None without one.
    """
    path: str
    flag: str = 'train_dir'
    files: frozenset[str] = frozenset()
    checkpoints: tuple[str, ...] = ()
    record: RunRecord | None = None
    starts: tuple[Mapping[str, Any], ...] = ()
    recorded: frozenset[int] = frozenset()
    evaluations: tuple[Mapping[str, Any], ...] = ()
    best: Mapping[str, Any] | None = None

    @property
    def given(self) -> str:
        """The folder as a flag: '--train_dir=/tmp/train'."""
        return f'--{self.flag}={self.path}' if self.flag else self.path

    @property
    def run_id(self) -> str | None:
        """The id of the run; None without a record."""
        return self.record.run_id if self.record else None

    @property
    def of_checkpoints(self) -> list[str]:
        """The file names of complete and incomplete checkpoints, and the list of checkpoints."""
        return sorted(name for name in self.files if name == LIST or re.fullmatch(_OF_CHECKPOINT, name))

    @property
    def started(self) -> list[RunRecord]:
        """The records of the starts that took the run's steps, in order."""
        return [RunRecord.parse(start, os.path.join(self.path, metrics.NAME)) for start in self.starts]

    def record_of(self, step: int) -> RunRecord | None:
        """Returns the record of the start that took a step, or else the newest record."""
        took = [record for record in self.started if record.step < step]
        return took[-1] if took else self.record


def look(path: str, flag: str = 'train_dir') -> Folder:
    """Takes a snapshot of a folder; raises a UsageError if it or its config.json is unreadable."""
    records = metrics.read(path, metrics.START, metrics.CHECKPOINT, metrics.EVAL)
    starts, checkpoints, evaluations = (tuple(record for record in records if record['kind'] == kind)
                                        for kind in (metrics.START, metrics.CHECKPOINT, metrics.EVAL))
    record = _config(path)
    if record is None and starts:  # a program that cleans /tmp has removed config.json
        record = RunRecord.parse(starts[-1], os.path.join(path, metrics.NAME))
    return glance(path, flag)._replace(
        record=record, starts=starts, recorded=frozenset(each['step'] for each in checkpoints),
        evaluations=evaluations, best=best_of(path))


def glance(path: str, flag: str = 'train_dir') -> Folder:
    """Returns a snapshot with only the files and checkpoints, like `look`, without reading any file."""
    entries = []
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            entries = list(os.scandir(path or '.'))
    except OSError as error:  # treating it as empty could delete its files
        given = Folder(path, flag).given
        raise UsageError(f'{given} cannot be used: {describe_os_error(error)}; use another directory') from None
    regular = frozenset(entry.name for entry in entries if _is_file(entry))
    # A checkpoint exists once its index does. In TensorFlow's V1 format, it is one file without a suffix.
    prefixes = [os.path.join(path, name) for name in {name.removesuffix('.index') for name in regular}
                if re.fullmatch(rf'{re.escape(CHECKPOINT)}-[0-9]+', name)]
    return Folder(path, flag, regular, tuple(sorted(prefixes, key=step_of)))


def _is_file(entry):
    """Returns whether a folder entry is a file; a broken link is not."""
    with contextlib.suppress(OSError):
        return entry.is_file()
    return False


def _config(path):
    path = os.path.join(path, SETTINGS)
    try:
        values = read_json(path)
    except OSError as error:
        raise UsageError(f'{path} cannot be read ({error}); use another directory') from error
    if values is None:
        return None
    if not isinstance(values, dict) or values.get('program') != PROGRAM:
        raise UsageError(f'{path} was not written by this program; use another directory')
    return RunRecord.parse(values, path)


def best_of(path: str) -> dict[str, Any] | None:
    """Returns `Folder.best` of the folder at a path; raises a UsageError if its best.json is unreadable."""
    path = os.path.join(path, BEST)
    best = read_json(path)
    if best is None or isinstance(best, dict) and isinstance(best.get('step'), int):
        return best
    raise UsageError(f'{path} was not written by this program; move it away')


def read_json(path: str) -> Any:
    """Reads the JSON in a file of a run; returns None for a missing file, raises a UsageError if it is not JSON."""
    try:
        # As bytes, because `json` knows the encodings and byte order marks that editors use.
        with files.named(path), open(locks.opened(path), 'rb') as stream:
            return json.load(stream)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise UsageError(f'{path} cannot be read ({error}); correct it, or use another directory') from error


def exists(prefix: str) -> bool:
    """Returns whether a checkpoint exists: its index, or the single file of TensorFlow's V1 format."""
    is_other = os.path.basename(prefix) == LIST or re.search(f'{_PART}$', prefix)
    return os.path.isfile(prefix + '.index') or os.path.isfile(prefix) and not is_other


def is_unfinished(name: str) -> bool:
    """Returns whether a name in a train_dir is a name for this program's unfinished files."""
    return bool(re.fullmatch(_UNFINISHED, name))


def prefix_of(train_dir: str, step: int) -> str:
    """Returns the path of a checkpoint, without the suffixes of its files."""
    return os.path.join(train_dir, f'{CHECKPOINT}-{step}')


def unfinished_prefix_of(train_dir: str, step: int) -> str:
    """Returns the path of an unfinished checkpoint, without suffixes."""
    return os.path.join(train_dir, f'.{CHECKPOINT}-{step}')


def step_of(prefix: str) -> int:
    """Returns the step in a checkpoint's name."""
    return int(prefix.rsplit('-', 1)[1])


def step_without_index(name: str) -> int | None:
    """Returns the step of a file's checkpoint, if a kill may leave the file without the index."""
    part = re.fullmatch(rf'{re.escape(CHECKPOINT)}-(\d+)\.(?:{_WITHOUT_INDEX})', name)
    return int(part[1]) if part else None


def parts(prefix: str) -> list[str]:
    """Returns the paths of the files of a checkpoint, its index last: without an index it is no checkpoint.

    Omits the user's files, such as a backup model.ckpt-1000.tar.
    """
    folder, base = os.path.split(prefix)
    suffixes = [name.removeprefix(base) for name in os.listdir(folder or '.') if name.startswith(base)]
    found = [suffix for suffix in suffixes if re.fullmatch(f'{_PART}(?:{_TEMPORARY})?', suffix)]
    return [prefix + suffix for suffix in sorted(found, key=lambda suffix: suffix.startswith('.index'))]


def written_by(path: str, process: int) -> list[str]:
    """Returns the paths of the records and summaries that a process writes to a run's folder."""
    folders = path, os.path.join(path, CURVES), os.path.join(path, EVALUATIONS)
    return [os.path.join(folder, name) for folder in folders for name in glance(folder).files
            if name == metrics.NAME or name.endswith(f'.{process}{EVENTS_SUFFIX}')]
