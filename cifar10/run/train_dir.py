"""A train_dir: the directory of a run, its lock, and checkpoints that appear whole.

A start resumes the run in it. `deletion` decides which files a start removes.
"""
import contextlib
import json
import os
import re
import secrets
import socket
from collections.abc import Iterator, Sequence

from cifar10.base import files
from cifar10.base.console import say
from cifar10.base.directories import BEST, check_dir, make_dir, refuse_of_others
from cifar10.base.errors import RunError, TemporaryError, UsageError
from cifar10.base.signals import is_stopped
from cifar10.run import metrics
from cifar10.run.names import (
    CHECKPOINT,
    EVENTS_SUFFIX,
    LIST,
    SETTINGS,
    exists,
    is_of_checkpoint,
    is_of_run,
    parts,
    step_of,
    step_without_index,
)
from cifar10.run.record import RunRecord, read_starts

_LOCK = 'lock'
_PROGRAM = 'cifar10 multi_gpu_train'
ANOTHER_DIR = 'use another --train_dir'  # the remedies in messages
OR_RESTART = ', or --restart to delete that run'
ANOTHER_RUN = ANOTHER_DIR + OR_RESTART
_LOOK_SECS = 1  # that a start waits for the lock, which others hold while they look who trains


class TrainDir:
    """The directory of a training run; it need not exist yet.

    Args:
      path: of the directory.
      flag: the flag that gives it, for messages.
    """

    def __init__(self, path: str, flag: str = 'train_dir'):
        self.path = path
        self.flag = flag
        self._lock = None  # where this process holds it

    @property
    def given(self) -> str:
        """The directory as a user gives it: '--train_dir=/tmp/train'."""
        return f'--{self.flag}={self.path}'

    @property
    def checkpoint_prefix(self) -> str:
        """The path of a checkpoint without its '-<step>'."""
        return os.path.join(self.path, CHECKPOINT)

    def checkpoints(self) -> list[str]:
        """Returns the prefixes of the checkpoints, oldest step first."""
        names = []
        # If it cannot be listed, a start must not take it for one without checkpoints, and delete the run in it.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            names = os.listdir(self.path or '.')
        begin = f'{CHECKPOINT}-'
        found = {name.removesuffix('.index') for name in names if name.startswith(begin)}
        prefixes = [os.path.join(self.path, name) for name in found if name.removeprefix(begin).isdecimal()]
        return sorted(filter(exists, prefixes), key=step_of)

    def newer_without_index(self) -> list[str]:
        """Returns the data files of checkpoints that lack their index and have later steps than those that exist."""
        newest = max(map(step_of, self.checkpoints()), default=-1)
        return sorted(os.path.join(self.path, name) for name in os.listdir(self.path or '.')
                      if '.data-' in name and (step_without_index(name) or 0) > newest)

    def incomplete(self) -> str | None:
        """Returns a phrase that says what is missing where files have the names of checkpoints, but there is none.

        Otherwise None. Data without an index may be what a kill left of a run's first checkpoint, which was not listed.
        """
        if TrainDir(self.path).checkpoints() or not os.path.isdir(self.path):
            return None
        files_here = [entry.name for entry in os.scandir(self.path) if entry.is_file()]
        names = sorted(filter(is_of_checkpoint, files_here), key=LIST.__eq__)
        if not names or LIST not in names and self.stored():
            return None
        prefix = re.match(rf'{re.escape(CHECKPOINT)}-\d+', names[0])
        index = f"{prefix[0] if prefix else f'{CHECKPOINT}-<step>'}.index"
        return f'holds {names[0]}, but no {index}, so no checkpoint can be read; copy what is missing'

    @property
    def partial_prefix(self) -> str:
        """Like `checkpoint_prefix`, for a checkpoint that is still being written; `publish` renames it."""
        return os.path.join(self.path, '.' + CHECKPOINT)

    def publish(self, step: int) -> str:
        """Gives the files of a complete checkpoint their final names, the index last; returns its prefix.

        A checkpoint exists once its index does. By then the checkpoint is on the disk, together with the
        records and summaries up to its step, so even a power failure right afterwards loses none of them.
        """
        self.refuse_another_folder()
        prefix, partial = (f'{each}-{step}' for each in (self.checkpoint_prefix, self.partial_prefix))
        names = os.listdir(self.path)
        records = [name for name in names if name == metrics.NAME or name.endswith(f'.{os.getpid()}{EVENTS_SUFFIX}')]
        written = parts(partial)
        files.sync(*(os.path.join(self.path, name) for name in records), *written)
        for part in written:
            os.rename(part, prefix + part.removeprefix(partial))
            files.sync(self.path)
        return prefix

    def remove_partial(self, step: int) -> None:
        """Removes what a failed save of this step left behind."""
        for prefix in (self.partial_prefix, self.checkpoint_prefix):
            self.remove_checkpoint(f'{prefix}-{step}')

    def remove_checkpoint(self, prefix: str) -> None:
        """Removes the files of a checkpoint, its index first: without an index it is no checkpoint."""
        for part in reversed(parts(prefix)):
            os.remove(part)

    def check(self) -> None:
        """Raises a UsageError if a run cannot use the directory, as far as can be known without creating it."""
        if exists(self.path) and not os.path.isfile(self.path) and not self.checkpoints():
            raise UsageError(f'{self.given} is a checkpoint; give the directory that contains it')
        refuse_of_others(self.path, self.given)
        check_dir(self.path, '--train_dir')
        for folder in (self.path, os.path.join(self.path, BEST)):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                for entry in os.scandir(folder):
                    if is_of_run(entry.name) and entry.is_dir(follow_symlinks=False):
                        raise UsageError(f'{entry.path} is a folder, and a run writes or removes a file of this name; '
                                         'move it away')
        with contextlib.suppress(FileNotFoundError):
            os.close(files.opened(os.path.join(self.path, metrics.NAME)))

    def stored(self) -> RunRecord | None:
        """Returns the newest record of the run, or None if there is none, as in a run of the tutorial's scripts."""
        path = os.path.join(self.path, SETTINGS)
        try:
            # What is not UTF-8 is not JSON either, and refused as that.
            with open(files.opened(path), encoding='utf-8', errors='replace') as stream:
                values = json.load(stream)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise UsageError(f'{path} cannot be read ({error}); use another directory') from error
        if not isinstance(values, dict) or values.get('program') != _PROGRAM:
            raise UsageError(f'{path} was not written by this program; use another directory')
        return RunRecord.parse(values, path)

    def record_of(self, step: int) -> RunRecord | None:
        """Returns the record of the start that took a step; the newest one if there is none of that step."""
        took = [record for record in read_starts(self.path) if record.step < step]
        return took[-1] if took else self.stored()

    def is_run(self, run: str | None) -> bool:
        """Returns whether the run here is the one with an id.

        Args:
          run: the id; None is a run without a record, as the tutorial's scripts leave it. Its first resume records it,
            with an id, and it is still the same run.
        """
        stored = self.stored()
        if stored is None or run is not None:
            return run == (stored.run if stored else None)
        starts = metrics.read(self.path, metrics.START)
        return (starts[0]['step'] if starts else stored.step) > 0

    def begin(self, record: RunRecord) -> str:
        """Writes the record of a start and the id of the run, which a resumed run keeps; returns both as JSON text."""
        stored = self.stored()
        run = stored.run if stored else secrets.token_hex(8)
        text = json.dumps(dict(program=_PROGRAM, run=run, **record.to_json()), indent=2)
        files.replace(os.path.join(self.path, SETTINGS), text + '\n')
        return text

    def list_checkpoints(self, prefixes: Sequence[str]) -> None:
        """Writes the list that `tf.train.latest_checkpoint` reads, of at least one prefix, the newest last."""
        names = [os.path.basename(prefix) for prefix in prefixes]
        # The text format of a CheckpointState (tensorflow/core/protobuf/checkpoint_state.proto).
        text = f'model_checkpoint_path: "{names[-1]}"\n' + ''.join(
            f'all_model_checkpoint_paths: "{name}"\n' for name in names)
        files.replace(os.path.join(self.path, LIST), text)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Context in which no other process trains here; makes the directory if it does not exist.

        After an error, a directory where nothing was written is left as it was found.
        """
        first = files.existing(self.path)
        make_dir(self.path, '--train_dir')
        with contextlib.ExitStack() as stack:
            with self._lock_errors():
                self._lock = stack.enter_context(files.locked(self._lock_path, _LOOK_SECS))
            if self._lock.missing:
                say(f'warning: {self._lock_path} cannot be locked ({self._lock.missing}); make sure that no other '
                    'process trains in this --train_dir')
            try:
                yield
            except BaseException:
                is_only_ours = not self._lock.missing and not self._lock.is_lost()
                if is_only_ours and os.listdir(self.path) == [_LOCK]:
                    os.remove(self._lock_path)
                    files.remove_empty(self.path, first)
                raise
            finally:
                self._lock = None

    def refuse_another_folder(self) -> None:
        """Raises a RunError if the folder of this name is no longer the one that this process has locked.

        It may have been moved, removed or replaced by a copy while the run went on. Nothing is written to another one.
        """
        if self._lock and self._lock.is_lost():
            raise RunError(f'{self.path} is no longer the folder that this run has locked, so nothing more is written '
                           'there; the checkpoints are where that folder is now')

    def refuse_another_process(self) -> None:
        """Raises a TemporaryError if another process trains here; creates nothing."""
        with self._lock_errors():
            files.refuse_held(self._lock_path)

    @property
    def _lock_path(self):
        return os.path.join(self.path, _LOCK)

    @contextlib.contextmanager
    def _lock_errors(self):
        try:
            yield
        except PermissionError:
            raise UsageError(f'the lock of {self.given} belongs to another user and cannot be opened; use '
                             'another --train_dir') from None
        except files.Held as holder:
            who = str(holder)
            process = re.fullmatch(rf'process (\d+) on {re.escape(socket.gethostname())}', who)
            if process and is_stopped(int(process[1])):
                who += f', which is stopped: kill -CONT {process[1]} lets it go on, kill -9 {process[1]} ends it'
            raise TemporaryError(f"another process is training in {self.given}{f' ({who})' if who else ''}; "
                                 'start again once it has ended, or use another --train_dir') from None
