"""A train_dir: the directory of a run, its lock, and checkpoints that appear whole.

It acts, and leaves looking to `folder` and deciding to `takeover`.
"""
import contextlib
import itertools
import json
import os
import re
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cifar10.base import files
from cifar10.base.console import say
from cifar10.base.directories import CURVES, EVALUATIONS, make_dir
from cifar10.base.errors import RunError, TemporaryError, UsageError
from cifar10.base.signals import is_stopped
from cifar10.run.folder import BEST, CHECKPOINT, LIST, PROGRAM, SETTINGS, glance, parts, written_by
from cifar10.run.record import RunRecord

_LOCK = 'lock'
_LOOK_SECS = 1  # that a start waits for the lock, which others hold while they look who trains


class TrainDir:
    """The directory of a training run; it need not exist yet."""

    def __init__(self, path: str):
        self.path = path
        self._lock = None  # where this process holds it
        self._held = contextlib.ExitStack()  # within which it does
        self._settings = None  # the text of config.json, once it is written

    @property
    def checkpoint_prefix(self) -> str:
        """The path of a checkpoint without its '-<step>'."""
        return os.path.join(self.path, CHECKPOINT)

    @property
    def partial_prefix(self) -> str:
        """Like `checkpoint_prefix`, for a checkpoint that is still being written; `publish` renames it."""
        return os.path.join(self.path, '.' + CHECKPOINT)

    def begin(self, record: RunRecord, run: str | None = None) -> str:
        """Writes the record of a start and the id of its run; returns the id.

        A new run has no id yet, and gets one.
        """
        run = run or secrets.token_hex(8)
        self._settings = json.dumps(dict(program=PROGRAM, run=run, **record.to_json()), indent=2)
        self._write_settings()
        return run

    def _write_settings(self):
        files.replace(os.path.join(self.path, SETTINGS), self._settings + '\n')

    def keep(self, *others: str) -> None:
        """Keeps what the run needs from programs that clean /tmp: its files, also those in its folders, and `others`.

        They count as used now. config.json, which only starts read, is written again if it is gone.
        """
        self.refuse_another_folder()
        if not os.path.exists(os.path.join(self.path, SETTINGS)):
            self._write_settings()
        folders = self.path, *(os.path.join(self.path, name) for name in (CURVES, EVALUATIONS))
        files.mark_used(*(os.path.join(each, name) for each in folders for name in glance(each).files), *others)

    def publish(self, step: int) -> str:
        """Gives the files of a complete checkpoint their final names, the index last; returns its prefix.

        A checkpoint exists once its index does. By then the checkpoint is on the disk, together with the
        records and summaries up to its step, so even a power failure right afterwards loses none of them.
        """
        self.refuse_another_folder()
        prefix, partial = (f'{each}-{step}' for each in (self.checkpoint_prefix, self.partial_prefix))
        written = parts(partial)
        files.sync(*written_by(self.path, os.getpid()), *written)
        for part in written:
            os.rename(part, prefix + part.removeprefix(partial))
            files.sync(self.path)
        return prefix

    def list_checkpoints(self, prefixes: Sequence[str]) -> None:
        """Writes the list that `tf.train.latest_checkpoint` reads, of at least one prefix, the newest last."""
        names = [os.path.basename(prefix) for prefix in prefixes]
        # The text format of a CheckpointState (tensorflow/core/protobuf/checkpoint_state.proto).
        text = f'model_checkpoint_path: "{names[-1]}"\n' + ''.join(
            f'all_model_checkpoint_paths: "{name}"\n' for name in names)
        files.replace(os.path.join(self.path, LIST), text)

    def note_best(self, evaluation: Mapping[str, Any]) -> None:
        """Writes best.json: the step of a checkpoint that is on the disk, and the figures of its evaluation."""
        figures = {name: value for name, value in evaluation.items() if name not in ('kind', 'time')}
        files.replace(os.path.join(self.path, BEST), json.dumps(figures, indent=2) + '\n')

    def forget_best(self) -> None:
        """Removes best.json, before the steps up to that of its checkpoint are taken again."""
        os.remove(os.path.join(self.path, BEST))
        files.sync(self.path)

    def remove_checkpoint(self, prefix: str) -> None:
        """Removes the files of a checkpoint, its index first: without an index it is no checkpoint."""
        remove(reversed(parts(prefix)))

    def remove_partial(self, step: int) -> None:
        """Removes what a failed save of this step left behind."""
        for prefix in (self.partial_prefix, self.checkpoint_prefix):
            self.remove_checkpoint(f'{prefix}-{step}')

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Context in which no other process trains here; makes the directory if it does not exist.

        After an error, a directory where nothing was written is left as it was found.
        """
        first = files.existing(self.path)
        make_dir(self.path, '--train_dir')
        with self._held:
            self._take_lock()
            try:
                yield
            except BaseException:
                is_only_ours = not self._lock.missing and not self._lock.is_lost()
                if is_only_ours and glance(self.path).files == {_LOCK}:
                    os.remove(self._lock_path)
                    files.remove_empty(self.path, first)
                raise
            finally:
                self._lock = None

    def _take_lock(self):
        with self._lock_errors():
            self._lock = self._held.enter_context(files.locked(self._lock_path, _LOOK_SECS))
        if self._lock.missing:
            say('warning', f'{self._lock_path} cannot be locked ({self._lock.missing}); make sure that no other '
                           'process trains in this --train_dir')

    def set_aside(self) -> str:
        """Renames the folder, which this process has locked, and locks a new one of its name; returns the new name.

        Raises:
          UsageError: the system does not rename it.
          TemporaryError: another process has taken its place.
        """
        self.refuse_another_folder()
        path = os.path.realpath(self.path)
        aside = next(name for n in itertools.count(1) if not os.path.lexists(name := f'{path}.{n}'))
        try:
            os.rename(path, aside)
            files.sync(os.path.dirname(path))
        except OSError as error:
            raise UsageError(f'--restart cannot rename {path} ({error.strerror}); use another --train_dir') from error
        self._held.close()  # the old run may be continued where it is now
        make_dir(path, '--train_dir')
        self._take_lock()
        return aside

    def refuse_fixed(self, *used: str) -> None:
        """Raises a UsageError if the folder cannot be set aside.

        Args:
          used: the paths of files and folders that the new run needs where they are.
        """
        path = os.path.realpath(self.path)
        parent, why = os.path.dirname(path), None
        if os.path.ismount(path):
            why = 'it is a mount point'
        elif inside := [each for each in (os.getcwd(), *used)
                        if os.path.commonpath([path, os.path.realpath(each)]) == path]:
            why = f'this command uses {inside[0]}'
        elif not os.access(parent, os.W_OK | os.X_OK):
            why = f'{parent} cannot be written'
        if why:
            raise UsageError(f'--restart would rename {path}, but {why}; use another --train_dir')

    def refuse_another_folder(self) -> None:
        """Raises a RunError if the folder of this name is no longer the one that this process has locked.

        It may have been moved, removed or replaced by a copy during the run. Nothing is written to another one.
        """
        if self._lock and self._lock.is_lost():
            raise RunError(f'{self.path} is no longer the folder that this run has locked, so nothing more is written '
                           'there; start again with the path where that folder is now')

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
            raise UsageError(f'the lock of --train_dir={self.path} belongs to another user and cannot be opened; use '
                             'another --train_dir') from None
        except files.Held as holder:
            who = str(holder)
            process = re.fullmatch(rf'process (\d+) on {re.escape(socket.gethostname())}', who)
            if process and is_stopped(int(process[1])):
                who += f', which is stopped: kill -CONT {process[1]} continues it, kill -9 {process[1]} ends it'
            raise TemporaryError(f"another process is training in --train_dir={self.path}{f' ({who})' if who else ''}; "
                                 'start again once it has ended, or use another --train_dir') from None


def remove(paths: Iterable[str]) -> None:
    """Removes files in their order."""
    for path in paths:
        os.remove(path)
