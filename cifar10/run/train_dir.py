"""A train_dir: the names of all files in it, and which program wrote them.

The run in a train_dir is resumed, files of other programs are left alone, and a restart deletes only files
that provably belong to an earlier run of this program.
"""
import contextlib
import errno
import fcntl
import glob
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cifar10.base import files
from cifar10.base.console import say
from cifar10.base.directories import check_dir, make_dir, refuse_of_others
from cifar10.base.errors import RunError, UsageError
from cifar10.run import metrics
from cifar10.settings.training import TrainSettings, completed

EVENTS_SUFFIX = '.cifar10'
_CHECKPOINT = 'model.ckpt'
SETTINGS = 'config.json'
BEST = 'best'  # the folder of the best checkpoint, in an eval_dir too
_LOCK = 'lock'
_PROGRAM = 'cifar10 multi_gpu_train'
ANOTHER_RUN = 'use another --train_dir, or --restart to delete that run'  # the remedy in messages
_LOOK_SECS = 1  # that a start waits for the lock, which others hold while they look who trains
_LIST = 'checkpoint'  # TensorFlow's list of the checkpoints
_KEPT = '.kept'  # the suffix of the empty file that keeps a checkpoint for good
_WITHOUT_INDEX = r'kept|data-\d{5}-of-\d{5}'  # what a kill leaves of a checkpoint that is written or removed
_PART = rf'\.(?:index|meta|{_WITHOUT_INDEX})'  # the suffixes of a checkpoint's files
_WHOLE = (rf'{re.escape(SETTINGS)}|{re.escape(metrics.NAME)}|{_LIST}|trace-\d+-\d+\.json'
          rf'|events\.out\.tfevents\..*{re.escape(EVENTS_SUFFIX)}|{re.escape(_CHECKPOINT)}-\d+{_PART}')
# Files that are still being written: by TensorFlow's checkpoint writer and by `files.replace`.
_UNFINISHED = (rf'\.?{re.escape(_CHECKPOINT)}-\d+{_PART}\.tempstate\d+|\.{re.escape(_CHECKPOINT)}-\d+{_PART}'
               rf'|\.(?:{re.escape(SETTINGS)}|{re.escape(metrics.NAME)}|{_LIST}|trace-\d+-\d+\.json)\.{files.RANDOM}')
_OWN_FILES = re.compile(f'{_WHOLE}|{_UNFINISHED}')


class Stored(NamedTuple):
    """What a run stored about itself at its latest start; the tutorial's scripts stored nothing, so all is None there.

    Attributes:
      settings: all settings; those unknown to the version that stored them have their defaults.
      run: a random string that identifies the run.
      classes: the names of its classes.
      examples: the number of its training images.
      images_sha256: `Records.digest` of its training images.
      network_sha256, optimizer_sha256: as `own.sha256` returns it for the user's own; None for others.
    """
    settings: TrainSettings
    run: str | None = None
    classes: tuple[str, ...] | None = None
    examples: int | None = None
    images_sha256: str | None = None
    network_sha256: Mapping[str, str] | None = None
    optimizer_sha256: Mapping[str, str] | None = None

    @classmethod
    def of_tutorial(cls) -> 'Stored':
        """Returns what is true of a run of the tutorial's scripts, which stored nothing."""
        return cls(completed({}))


class TrainDir:
    """The directory of a training run; it need not exist yet."""

    def __init__(self, path: str):
        self.path = path
        self._lock_held = None  # the descriptor of the lock, where this process holds it

    @property
    def checkpoint_prefix(self) -> str:
        """The path of a checkpoint without its '-<step>'."""
        return os.path.join(self.path, _CHECKPOINT)

    def checkpoints(self) -> list[str]:
        """Returns the prefixes of the checkpoints, oldest step first."""
        paths = glob.glob(glob.escape(self.checkpoint_prefix) + '-*.index')
        prefixes = [path.removesuffix('.index') for path in paths]
        return sorted((prefix for prefix in prefixes if prefix.rsplit('-', 1)[1].isdigit()), key=step_of)

    @property
    def partial_prefix(self) -> str:
        """Like `checkpoint_prefix`, for a checkpoint that is still being written; `publish` renames it."""
        return os.path.join(self.path, '.' + _CHECKPOINT)

    def publish(self, step: int, for_good: bool = False) -> str:
        """Gives the files of a complete checkpoint their final names, the index last; returns its prefix.

        A checkpoint exists once its index does. By then the checkpoint is on the disk, together with the
        records and summaries up to its step, so even a power failure right afterwards loses none of them.

        Args:
          step: of the checkpoint.
          for_good: whether it is to be one of `kept_for_good`.
        """
        self.refuse_another_folder()
        prefix, partial = (f'{each}-{step}' for each in (self.checkpoint_prefix, self.partial_prefix))
        if for_good:
            open(partial + _KEPT, 'w').close()
        names = os.listdir(self.path)
        records = [name for name in names if name == metrics.NAME or name.endswith(f'.{os.getpid()}{EVENTS_SUFFIX}')]
        written = parts(partial)
        files.sync(*(os.path.join(self.path, name) for name in records), *written)
        for part in written:
            os.rename(part, prefix + part.removeprefix(partial))
            files.sync(self.path)
        return prefix

    def kept_for_good(self) -> set[int]:
        """Returns the steps of the checkpoints that no start of a run removes: a file `.kept` is beside each."""
        return {step_of(prefix) for prefix in self.checkpoints() if os.path.exists(prefix + _KEPT)}

    def remove_partial(self, step: int) -> None:
        """Removes what a failed save of this step left behind."""
        for prefix in (self.partial_prefix, self.checkpoint_prefix):
            self.remove_checkpoint(f'{prefix}-{step}')

    def remove_checkpoint(self, prefix: str) -> None:
        """Removes the files of a checkpoint, its index first: without an index it is no checkpoint."""
        for part in reversed(parts(prefix, r'(?:\.tempstate\d+)?')):
            os.remove(part)

    def trace_path(self, first: int, last: int) -> str:
        """Returns the path of the trace of the steps `first` to `last`."""
        return os.path.join(self.path, f'trace-{first}-{last}.json')

    def check(self) -> None:
        """Raises a UsageError if a run cannot use the directory, as far as can be known without creating it."""
        refuse_of_others(self.path, f'--train_dir={self.path}')
        check_dir(self.path, '--train_dir')
        for name in (metrics.NAME, _LIST):
            with contextlib.suppress(FileNotFoundError):
                os.close(files.opened(os.path.join(self.path, name)))

    def stored(self) -> Stored | None:
        """Returns what the run stored about itself, or None if it stored nothing."""
        path = os.path.join(self.path, SETTINGS)
        try:
            text = self._settings_text()
            if text is None:
                return None
            values = json.loads(text)
        except (OSError, ValueError) as error:
            raise UsageError(f'{path} cannot be read ({error}); use another directory') from error
        if not isinstance(values, dict) or values.get('program') != _PROGRAM:
            raise UsageError(f'{path} was not written by this program; use another directory')
        classes = values.get('classes')
        return Stored(completed(values), values.get('run'), None if classes is None else tuple(classes),
                      values.get('examples'), values.get('images_sha256'), values.get('network_sha256'),
                      values.get('optimizer_sha256'))

    def _settings_text(self):
        """Returns the content of the settings file, or None if there is no file."""
        path = os.path.join(self.path, SETTINGS)
        try:
            # What is not UTF-8 is not JSON either, and refused as that.
            with open(files.opened(path), encoding='utf-8', errors='replace') as stream:
                return stream.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def drop_traces_after(self, step: int) -> None:
        """Removes the traces with steps after `step`, which are repeated."""
        for name in os.listdir(self.path):
            if (last := re.fullmatch(r'trace-\d+-(\d+)\.json', name)) and int(last[1]) > step:
                os.remove(os.path.join(self.path, name))

    def begin(self, settings: Mapping[str, Any], restart: Callable[[str], bool] | None = None) -> str:
        """Writes the settings of the run, atomically, if they are new or changed; returns them as JSON text.

        The file also holds the run's id, `run`: a resumed run keeps it, a new run gets a new one.

        Args:
          settings: the settings of the run.
          restart: the argument of `restart`, to delete an earlier run first; or None.
        """
        if restart:
            self.restart(restart)
        stored = self.stored()
        path = os.path.join(self.path, SETTINGS)
        run = stored.run if stored and stored.run else secrets.token_hex(8)
        text = json.dumps(dict(program=_PROGRAM, run=run, **settings), indent=2)
        if self._settings_text() != text + '\n':
            files.replace(path, text + '\n')
        return text

    def tidy(self, is_ours: Callable[[str], bool]) -> None:
        """Removes what killed processes of this run left behind.

        That is unfinished files, and data files of checkpoints without an index: checkpoints that were being
        written or removed. If another program wrote checkpoints here, whatever may be its own stays.

        Args:
          is_ours: function prefix -> whether this program wrote that checkpoint.
        """
        if self.stored() is None:
            return
        last_of_others = max((step_of(prefix) for prefix in self.checkpoints() if not is_ours(prefix)), default=-1)
        indexed = {step_of(prefix) for prefix in self.checkpoints()}
        for name in os.listdir(self.path):
            part = re.fullmatch(rf'{re.escape(_CHECKPOINT)}-(\d+)\.(?:{_WITHOUT_INDEX})', name)
            abandoned = part and int(part[1]) > last_of_others and int(part[1]) not in indexed
            if abandoned or re.fullmatch(_UNFINISHED, name):
                os.remove(os.path.join(self.path, name))

    def list_checkpoints(self, prefixes: Sequence[str]) -> None:
        """Writes the list of checkpoints that `tf.train.latest_checkpoint` reads, if it changed.

        Args:
          prefixes: the checkpoints' prefixes, the newest last; at least one.
        """
        names = [os.path.basename(prefix) for prefix in prefixes]
        # The text format of a CheckpointState (tensorflow/core/protobuf/checkpoint_state.proto).
        text = f'model_checkpoint_path: "{names[-1]}"\n' + ''.join(
            f'all_model_checkpoint_paths: "{name}"\n' for name in names)
        path = os.path.join(self.path, _LIST)
        with contextlib.suppress(FileNotFoundError, ValueError), open(files.opened(path)) as stream:
            if stream.read() == text:
                return
        files.replace(path, text)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Context in which no other process trains here; makes the directory if it does not exist.

        After an error, a directory where nothing was written is left as it was found.
        """
        first = files.existing(self.path)
        # The lock is on a regular file opened for writing: NFS keeps such a lock on its server, for all
        # machines, whereas a lock on a directory holds on this machine only.
        path = os.path.join(self.path, _LOCK)
        while True:
            make_dir(self.path, '--train_dir')
            try:
                descriptor = files.opened(path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:  # its last holder has removed the directory
                continue
            except PermissionError:
                raise self._locked_by_another_user() from None
            try:
                cause = self._lock(descriptor, fcntl.LOCK_EX)
                # Its last holder may have removed the file. Then the lock is worthless, because others lock the file
                # that has the name now.
                with contextlib.suppress(FileNotFoundError):
                    if cause or os.path.samestat(os.fstat(descriptor), os.stat(path)):
                        break
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        if cause:
            say(f'warning: {path} cannot be locked ({cause}); make sure that no other process trains in this '
                  '--train_dir')
        self._lock_held = None if cause else descriptor
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f'process {os.getpid()} on {socket.gethostname()}\n'.encode(), 0)
            yield
        except BaseException:
            if not cause and self._holds_lock() and os.listdir(self.path) == [_LOCK]:
                os.remove(path)
                files.remove_empty(self.path, first)
            raise
        finally:
            self._lock_held = None
            os.close(descriptor)

    def refuse_another_folder(self) -> None:
        """Raises a RunError if the folder of this name is no longer the one that this process has locked.

        It may have been moved, removed or replaced by a copy while the run went on. Nothing is written to another one.
        """
        if not self._holds_lock():
            raise RunError(f'{self.path} is no longer the folder that this run has locked, so nothing more is written '
                           'there; the checkpoints are where that folder is now')

    def _holds_lock(self):
        if self._lock_held is None:  # this file system has no locks, or nothing is written
            return True
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(os.fstat(self._lock_held), os.stat(os.path.join(self.path, _LOCK)))
        return False

    def refuse_another_process(self) -> None:
        """Raises a UsageError if another process trains here; creates nothing."""
        try:
            descriptor = files.opened(os.path.join(self.path, _LOCK), os.O_RDWR)
        except PermissionError:
            raise self._locked_by_another_user() from None
        except OSError:
            return  # there is no lock
        try:
            self._lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def _locked_by_another_user(self):
        return UsageError(f'the lock of --train_dir={self.path} belongs to another user and cannot be opened; use '
                          'another --train_dir')

    def _lock(self, descriptor, kind):
        """Takes the lock, shared or exclusive; returns None, or why this file system has no locks."""
        limit = time.monotonic() + _LOOK_SECS
        while True:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                return None
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):  # the second by NFS
                    return error.strerror
            if kind == fcntl.LOCK_SH or time.monotonic() > limit:
                holder = os.pread(descriptor, 200, 0).decode(errors='replace').strip()
                who = f' ({holder})' if holder else ''
                raise UsageError(f'another process is training in --train_dir={self.path}{who}; wait for it, or use '
                                 'another --train_dir')
            time.sleep(0.05)

    def refuse_records_without_run(self) -> None:
        """Raises a UsageError if there are records that no run here wrote: a new run would drop some."""
        path = os.path.join(self.path, metrics.NAME)
        if os.path.exists(path):
            raise UsageError(f'--train_dir={self.path} holds a {metrics.NAME}, but no run of this program; is it an '
                             '--eval_dir? Use another --train_dir')

    def check_restart(self, is_ours: Callable[[str], bool]) -> bool:
        """Returns whether there is an earlier run of this program that `restart` would delete.

        Args:
          is_ours: function prefix -> whether this program wrote that checkpoint.

        Raises:
          UsageError: it is not certain that this program wrote all checkpoints.
        """
        if self._settings_text() is None:
            if self.checkpoints():
                raise UsageError(f'--restart: {self.path} holds checkpoints, but no {SETTINGS} of this program, so '
                                 'they are not deleted; use another --train_dir')
            self.refuse_records_without_run()
            return False
        self.stored()  # raises if it is another program's
        foreign = [prefix for prefix in self.checkpoints() if not is_ours(prefix)]
        if foreign:
            raise UsageError(f'--restart: {foreign[0]} was not written by this program, so it is not deleted; '
                             'use another --train_dir')
        return True

    def restart(self, is_ours: Callable[[str], bool]) -> None:
        """Deletes the files of an earlier run of this program, after checking with `check_restart`."""
        if not self.check_restart(is_ours):
            return
        names = [name for name in sorted(os.listdir(self.path)) if _OWN_FILES.fullmatch(name)]
        if self.checkpoints():
            say(f'restart    deleting the {len(names)} files of the earlier run in {self.path}')
        else:
            say(f'replaced   the run in {self.path} that ended before its first checkpoint')
        # The settings go last: while they are there, the remaining files are known to be this program's, so a
        # restart that was interrupted can be repeated.
        for name in sorted(names, key=lambda name: name == SETTINGS):
            if name == SETTINGS:
                files.sync(self.path)
            os.remove(os.path.join(self.path, name))


class SingleCheckpoint(TrainDir):
    """The directory of a checkpoint, of which this is the only one that is looked at.

    Args:
      prefix: of the checkpoint, whatever its name is.
    """

    def __init__(self, prefix: str):
        super().__init__(os.path.dirname(prefix) or '.')
        self._prefix = prefix

    def checkpoints(self):
        return [self._prefix] if os.path.exists(self._prefix + '.index') else []


def parts(prefix: str, unfinished: str = '') -> list[str]:
    """Returns the paths of the files of a checkpoint, its index last: without an index it is no checkpoint.

    Only what TensorFlow and this program write: a backup beside it, model.ckpt-1000.tar, is the user's.

    Args:
      prefix: of the checkpoint.
      unfinished: a regular expression for what may follow the name of a file.
    """
    folder, base = os.path.split(prefix)
    suffixes = [name.removeprefix(base) for name in os.listdir(folder or '.') if name.startswith(base)]
    found = [suffix for suffix in suffixes if re.fullmatch(_PART + unfinished, suffix)]
    return [prefix + suffix for suffix in sorted(found, key=lambda suffix: suffix.startswith('.index'))]


def is_of_checkpoint(name: str) -> bool:
    """Returns whether a file is named like one of a checkpoint of this program, whole or unfinished."""
    return bool(re.fullmatch(rf'\.?{re.escape(_CHECKPOINT)}-\d+{_PART}(?:\.tempstate\d+)?', name))


def step_of(prefix: str) -> int:
    """Returns the step in a checkpoint's name."""
    return int(prefix.rsplit('-', 1)[1])


def check_eval_dir(path: str, checkpoint_dir: str) -> None:
    """Makes an eval_dir; raises a UsageError if it holds a run: TensorBoard would mix the curves of both."""
    refuse_of_others(path, f'--eval_dir={path}')
    make_dir(path, '--eval_dir')
    if os.path.realpath(path) == os.path.realpath(checkpoint_dir):
        raise UsageError(f'--eval_dir={path} is --checkpoint_dir; use another directory')
    if TrainDir(path).checkpoints() or {'checkpoint', SETTINGS} & set(os.listdir(path)):
        raise UsageError(f'--eval_dir={path} holds checkpoints, or the run that will write some; use another directory')
