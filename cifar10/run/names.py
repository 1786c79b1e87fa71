"""The names of the files of a run."""
import os
import re

from cifar10.base import files
from cifar10.run import metrics

SETTINGS = 'config.json'
FIGURES = 'best.json'  # the figures of the checkpoint in that folder
LIST = 'checkpoint'  # TensorFlow's list of the checkpoints
CHECKPOINT = 'model.ckpt'  # before '-<step>' and a suffix
STACKS = 'stuck.txt'  # what the threads of a process were doing that did not move
KEPT = '.kept'  # the suffix of the empty file with which earlier versions marked a checkpoint that rotation leaves
EVENTS_SUFFIX = '.cifar10'
_WITHOUT_INDEX = r'kept|data-\d{5}-of-\d{5}'  # what a kill leaves of a checkpoint that is written or removed
_PART = rf'\.(?:index|meta|{_WITHOUT_INDEX})'  # the suffixes of a checkpoint's files
_PART_OF_ANY = rf'{re.escape(CHECKPOINT)}-\d+{_PART}'
# With the files of TensorFlow's V1 format: one without a suffix, or several with numbers.
_OF_CHECKPOINT = rf'{re.escape(CHECKPOINT)}(-\d+)?({_PART}|-\d{{5}}-of-\d{{5}})?'
_TEMPORARY = r'\.tempstate\d+'  # what TensorFlow adds to the name of a file that it is writing
_REPLACED = rf'(?:{re.escape(SETTINGS)}|{re.escape(metrics.NAME)}|{LIST}|trace-\d+-\d+\.json)'  # by `files.replace`
_PRIVATE = rf'\.(?:{_REPLACED}|{re.escape(FIGURES)}|{re.escape(STACKS)})\.{files.RANDOM}'
_UNFINISHED = rf'\.?{_PART_OF_ANY}{_TEMPORARY}|\.{_PART_OF_ANY}|{_PRIVATE}'
_EVENTS = rf'events\.out\.tfevents\..*{re.escape(EVENTS_SUFFIX)}'


def is_of_run(name: str) -> bool:
    """Returns whether a file in a train_dir is named like one that this program writes, whole or unfinished."""
    return bool(re.fullmatch(rf'{_PART_OF_ANY}|{_REPLACED}|{re.escape(STACKS)}|{_EVENTS}|{_UNFINISHED}', name))


def is_of_checkpoint(name: str) -> bool:
    """Returns whether a file is named like one of a checkpoint, or is TensorFlow's list of them."""
    return name == LIST or bool(re.fullmatch(_OF_CHECKPOINT, name))


def exists(prefix: str) -> bool:
    """Returns whether there is a checkpoint: its index, or the one file that TensorFlow's V1 format has."""
    is_other = os.path.basename(prefix) == LIST or re.search(f'{_PART}$', prefix)
    return os.path.isfile(prefix + '.index') or os.path.isfile(prefix) and not is_other


def is_unfinished(name: str) -> bool:
    """Returns whether a file in a train_dir is named like one that this program is still writing."""
    return bool(re.fullmatch(_UNFINISHED, name))


def step_of(prefix: str) -> int:
    """Returns the step in a checkpoint's name."""
    return int(prefix.rsplit('-', 1)[1])


def step_without_index(name: str) -> int | None:
    """Returns the step of the checkpoint that a file belongs to, if a kill may leave it there without the index."""
    part = re.fullmatch(rf'{re.escape(CHECKPOINT)}-(\d+)\.(?:{_WITHOUT_INDEX})', name)
    return int(part[1]) if part else None


def parts(prefix: str) -> list[str]:
    """Returns the paths of the files of a checkpoint, its index last: without an index it is no checkpoint.

    Only what TensorFlow and this program write: a backup beside it, model.ckpt-1000.tar, is the user's.
    """
    folder, base = os.path.split(prefix)
    suffixes = [name.removeprefix(base) for name in os.listdir(folder or '.') if name.startswith(base)]
    found = [suffix for suffix in suffixes if re.fullmatch(f'{_PART}(?:{_TEMPORARY})?', suffix)]
    return [prefix + suffix for suffix in sorted(found, key=lambda suffix: suffix.startswith('.index'))]
