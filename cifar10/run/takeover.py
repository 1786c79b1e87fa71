"""Decides whether a start may use a train_dir; locks, renames and cleans it.

No run starts in a folder with another program's checkpoints.
"""
import contextlib
import itertools
import json
import os
import re
import secrets
import socket
from collections.abc import Iterator, Mapping

from cifar10.base import files, locks
from cifar10.base.console import say
from cifar10.base.directories import CURVES, EVALUATIONS, make_dir
from cifar10.base.errors import RunError, TemporaryError, UsageError, listed
from cifar10.base.registry import DATASETS
from cifar10.base.signals import is_stopped
from cifar10.run import metrics
from cifar10.run.folder import (
    BEST,
    LIST,
    PROGRAM,
    SETTINGS,
    Folder,
    glance,
)
from cifar10.run.record import RunRecord
from cifar10.settings.definition import Kind, fields
from cifar10.settings.training import GROUPS, OVER_WHOSE_LENGTH, TrainSettings, as_flags

_LOCK = 'lock'
_LOOK_SECS = 1  # wait for the lock, which other processes hold while they look for a trainer
ANOTHER_DIR = 'use another --train_dir'  # the remedies in messages
OR_RESTART = ', or --restart to rename that folder'
ANOTHER_RUN = ANOTHER_DIR + OR_RESTART


def refusal(folder: Folder, settings: TrainSettings) -> str | None:
    """Returns why a start may not use a folder, with the remedy; None if it may.

    A run without a checkpoint has nothing to resume, so a new run may replace it.
    """
    if folder.record is None:
        return _of_others(folder)
    if settings.run.restart:
        return None
    # A kill leaves at most one record of a missing checkpoint, and no list.
    if not folder.checkpoints and (LIST in folder.files or len(folder.recorded) > 1):
        return f'{folder.given} holds a run whose checkpoints have been removed; put them back, {ANOTHER_RUN}'
    return _another_run(folder, settings)


def sets_aside(folder: Folder, settings: TrainSettings) -> bool:
    """Returns whether an accepted start renames the folder with the earlier run."""
    return settings.run.restart and folder.record is not None


def remedy(folder: Folder, warm_start: bool = False) -> str:
    """Returns remedies for a folder with a different run; with `warm_start`, including the use of its model."""
    return ANOTHER_DIR + _there(folder.path) * warm_start + OR_RESTART


def refuse_others(prefix: str) -> str:
    """Returns why no run resumes from another program's checkpoint, with the remedy."""
    return f'{prefix} was written by another program, so no run continues from it; {ANOTHER_DIR}{_there(prefix)}'


def _there(model):
    return f' (there --warm_start={model} takes over the variables that fit)'


def _of_others(folder):
    """Returns why no run may begin next to another program's files, or None."""
    if names := folder.of_checkpoints:
        return (f'{folder.given} holds {names[0]}, but no {SETTINGS}, so it is no run of this program; {ANOTHER_DIR}'
                f'{_there(folder.path)}')
    if names := folder.files & {metrics.NAME, BEST}:
        return (f'{folder.given} holds a {min(names)}, but no run of this program; is it an --eval_dir? Use another '
                '--train_dir')
    return None


def _another_run(folder, settings):
    """Returns why the run in a folder does not match the settings, with the remedies, or None."""
    names, why = _unlike(folder.record, settings) if folder.checkpoints else ([], '')
    if not names:
        return None
    before, now = folder.record.settings.flat(), settings.flat()
    is_for_other_images = 'image_size' in names or 'dataset' in names and DATASETS.is_own(now['dataset'])
    offers_variables = is_for_other_images and before['network'] == now['network']
    was = f'a run of {_phrase(before, names)}'.replace('a run of a run', 'a run')
    return (f'{folder.given} has {was}{why}. For {_phrase(now, names)} {remedy(folder, offers_variables)}; to '
            'resume the run there, leave these flags out')


def _unlike(stored, settings):
    """Returns the names of the settings that distinguish a run from the stored run, and a reason if it is unclear."""
    recipe, now = settings.recipe, settings.flat()
    names = list(stored.difference_to(chosen(settings, Kind.FIXED)))
    others = stored.difference_to({name: now[name] for name in ('preset', 'epochs')})
    if 'epochs' in others and not names and recipe.planned:
        return ['max_steps', 'epochs'][now['epochs'] is not None:], f', {OVER_WHOSE_LENGTH[recipe.planned]}'
    if 'preset' in others and len(names) > 1:
        names = ['preset', *(name for name in ('dataset', 'seed') if name in names)]
    return names, ''


def chosen(settings: TrainSettings, kind: Kind) -> dict:
    """Returns the run's settings of this `Kind`, by name, without its length."""
    values = settings.flat()
    return {field.name: values[field.name] for field in fields(*GROUPS) if field.metadata['kind'] is kind
            and field.name not in ('max_steps', 'epochs')}


def _phrase(values: Mapping, names):
    """Returns settings as flags: '--seed=5', 'a run without --freeze', or '--seed=5 without --freeze'."""
    given = as_flags({name: values[name] for name in names}) or ['a run']
    missing = [f'--{name}' for name in names if values[name] is None]
    return ' '.join([*given, *(['without', listed(missing)] if missing else [])])


class TrainDir:
    """The directory of a training run; it need not exist yet."""

    def __init__(self, path: str):
        self.path = path
        self._lock: locks.Lock | None = None  # held by this process
        self._held = contextlib.ExitStack()  # holds the lock
        self._settings = ''  # the written text of config.json

    def begin(self, record: RunRecord, run: str | None = None) -> str:
        """Writes the record of a start and the id of its run; returns the id.

        Creates an id for a new run.
        """
        run = run or secrets.token_hex(8)
        self._settings = json.dumps(dict(program=PROGRAM, run=run, **record.to_json()), indent=2)
        self._write_settings()
        return run

    def _write_settings(self):
        files.replace(os.path.join(self.path, SETTINGS), self._settings + '\n')

    def keep(self, *others: str) -> None:
        """Marks the run's files, including its subfolders, and `others` as used, so that cleaners of /tmp keep them.

        Restores config.json, which only starts read, if it is missing.
        """
        self.refuse_another_folder()
        if not os.path.exists(os.path.join(self.path, SETTINGS)):
            self._write_settings()
        folders = self.path, *(os.path.join(self.path, name) for name in (CURVES, EVALUATIONS))
        files.mark_used(*(os.path.join(each, name) for each in folders for name in glance(each).files), *others)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Context that locks the directory against other trainers; creates it if necessary.

        After an error, leaves an unwritten directory as it found it.
        """
        first = files.existing(self.path)
        make_dir(self.path, '--train_dir')
        with self._held:
            self._take_lock()
            try:
                yield
            except BaseException:
                is_only_ours = self._lock and not self._lock.missing and not self._lock.is_lost()
                if is_only_ours and glance(self.path).files == {_LOCK}:
                    os.remove(self._lock_path)
                    files.remove_empty(self.path, first)
                raise
            finally:
                self._lock = None

    def _take_lock(self):
        with self._lock_errors():
            self._lock = self._held.enter_context(locks.locked(self._lock_path, _LOOK_SECS))
        if self._lock.missing:
            say('warning', f'{self._lock_path} cannot be locked ({self._lock.missing}); make sure that no other '
                           'process trains in this --train_dir')

    def set_aside(self) -> str:
        """Renames the locked folder, and creates and locks a new one in its place; returns the old run's new name.

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
        self._lock = None
        self._held.close()  # allows a resume of the renamed run
        make_dir(path, '--train_dir')
        self._take_lock()
        return aside

    def refuse_fixed(self, *used: str) -> None:
        """Raises a UsageError if the folder cannot be set aside.

        Args:
          used: paths of files and folders that the new run needs in place.
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
        """Raises a RunError if the folder at this path is no longer the locked one.

        A user may move, remove or replace the folder during the run. The run writes nothing to a different folder.
        """
        if self._lock and self._lock.is_lost():
            raise RunError(f'{self.path} is no longer the folder that this run has locked, so nothing more is written '
                           'there; start again with the new path of that folder')

    def refuse_another_process(self) -> None:
        """Raises a TemporaryError if another process trains here; creates nothing."""
        with self._lock_errors():
            locks.refuse_held(self._lock_path)

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
        except locks.Held as holder:
            who = str(holder)
            process = re.fullmatch(rf'process (\d+) on {re.escape(socket.gethostname())}', who)
            if process and is_stopped(int(process[1])):
                who += f', which is stopped: kill -CONT {process[1]} continues it, kill -9 {process[1]} ends it'
            raise TemporaryError(f"another process is training in --train_dir={self.path}{f' ({who})' if who else ''}; "
                                 'start again once it has ended, or use another --train_dir') from None
