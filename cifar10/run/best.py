"""The best checkpoint of an evaluator, or of a run that evaluates itself, kept where training does not delete it.

That of a run is complete and on the disk, under a private name, before the next checkpoint is, and gets its own name
after it. So it is always of a step that a start goes on from, and one that a kill left under its private name is
completed or, if its step is taken again, removed.
"""
import contextlib
import fcntl
import glob
import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

from cifar10.base import files
from cifar10.base.console import say
from cifar10.base.errors import UsageError
from cifar10.run.names import BEST, SETTINGS, is_of_checkpoint, parts
from cifar10.run.train_dir import TrainDir

_FIGURES = 'best.json'
_EVALUATION = 'of'  # the key in best.json under which the evaluation is
_LOCK = 'lock'
_COPY = '.copy'  # the suffix of a file that is being copied


def folder(eval_dir: str) -> str:
    """Returns the folder of the best checkpoint in an eval_dir."""
    return os.path.join(eval_dir, BEST)


def of_run(directory: TrainDir) -> list[str]:
    """Returns the paths of the folders with a best checkpoint of the run in a train_dir, not those of another run."""
    stored = directory.stored()
    if stored is None or stored.run is None:
        return []
    names = [name for name in os.listdir(directory.path) if name == BEST or files.is_private(name, BEST)]
    paths = [os.path.join(directory.path, name) for name in names]
    return [path for path in paths if (figures := _figures(path)) and figures[_EVALUATION].get('run') == stored.run]


def deletes(directory: TrainDir, prefix: str) -> bool:
    """Returns whether a start that deletes the run in a train_dir deletes a checkpoint with it."""
    folder, name = os.path.split(os.path.realpath(prefix))
    folders = [directory.path, *of_run(directory)]
    return folder in map(os.path.realpath, folders) and is_of_checkpoint(name + '.index')


def remove(directory: TrainDir) -> None:
    """Removes the best checkpoint of the run in a train_dir that is about to be deleted; the caller holds its lock."""
    for path in of_run(directory):
        private = files.private(folder(directory.path), os.mkdir)
        os.rename(path, private)
        _discard(private)


class Best:
    """The folder `best` of an eval_dir or train_dir: a checkpoint, its run's settings, and its figures in best.json.

    Programs can read it as a train_dir. It is replaced as a whole, and only by a checkpoint of the same run that
    was evaluated with the same settings. A candidate is a folder with a private name (see `files`). Its process
    holds its lock, so that other processes can tell whether that process was killed.

    Args:
      directory: that of the evaluator, or of the run.
      evaluation: what is evaluated and how. Only precisions of the same evaluation are compared.
      is_locked: whether the caller holds the lock of the directory all the time, as a run does, which calls `tidy` at
        its start and `publish` after each checkpoint; an evaluator holds it for the time of a call, because there may
        be others.

    Attributes:
      path: the path of the folder.
    """

    def __init__(self, directory: str, evaluation: dict[str, Any], is_locked: bool = False):
        self.path = folder(directory)
        self._directory = directory
        self._evaluation = evaluation
        self._is_locked = is_locked
        self._has_reported = False
        self._complete = None  # the path of a better one than `path`, which `publish` gives that name

    def figures(self) -> dict | None:
        """Returns the figures of the best checkpoint so far, or None if there is none."""
        return _figures(self._complete or self.path)

    @contextlib.contextmanager
    def candidate(self, prefix: str) -> Iterator[str]:
        """Context with a folder that keeps a checkpoint's files, even if training deletes them meanwhile."""
        with self._new_folder() as folder:
            for path in [*parts(prefix), os.path.join(os.path.dirname(prefix), SETTINGS)]:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, which the evaluation finds out
                    _link(path, os.path.join(folder, os.path.basename(path)))
            yield folder

    @contextlib.contextmanager
    def candidate_of_run(self) -> Iterator[str]:
        """Context with a folder for a checkpoint of the run in this directory, which the caller writes into it."""
        with self._new_folder() as folder:
            _link(os.path.join(self._directory, SETTINGS), os.path.join(folder, SETTINGS))
            yield folder

    @contextlib.contextmanager
    def _new_folder(self):
        """Context with an empty candidate, whose lock this process holds; it is deleted unless it becomes the best."""
        with contextlib.ExitStack() as stack:
            with contextlib.nullcontext() if self._is_locked else files.locked(os.path.join(self._directory, _LOCK)):
                if not self._is_locked:
                    self.tidy()
                folder = files.private(self.path, os.mkdir)
                stack.enter_context(files.locked(os.path.join(folder, _LOCK)))
            try:
                yield folder
            finally:
                if folder != self._complete:
                    shutil.rmtree(folder, ignore_errors=True)

    def offer(self, candidate: str, step: int, precision: float, **figures: Any) -> bool:
        """Takes a candidate as the best checkpoint if its precision is the highest; returns whether it is.

        The caller holds the lock of the directory.

        Args:
          candidate: the folder from `candidate` or `candidate_of_run`, whose checkpoint has been evaluated.
          step: the step of the checkpoint.
          precision: its precision.
          figures: other figures to store.

        Raises:
          OSError: the folder cannot be written. The previous best checkpoint stays.
        """
        if not self._is_locked:
            self.tidy()
        best = self.figures()
        if os.path.lexists(self.path) and (best is None or best[_EVALUATION] != self._evaluation):
            self._report_foreign(best)
            return False
        if best and best['precision'] >= precision:
            return False
        figures = dict(step=step, precision=precision, **figures)
        figures[_EVALUATION] = self._evaluation
        os.remove(os.path.join(candidate, _LOCK))
        for name in os.listdir(candidate):
            _make_independent(os.path.join(candidate, name))
        files.sync_tree(candidate)
        files.replace(os.path.join(candidate, _FIGURES), json.dumps(figures, indent=2) + '\n')  # it is complete
        if self._complete:
            _discard(self._complete)
        self._complete = candidate
        if not self._is_locked:
            self.publish()
        return True

    def publish(self) -> bool:
        """Gives the best checkpoint since the last call its name; returns whether there was one.

        The caller holds the lock of the directory.

        Raises:
          OSError: it cannot be renamed. The next call of `tidy` completes it.
        """
        if self._complete is None:
            return False
        self._replace(self._complete)
        self._complete = None
        return True

    def _replace(self, complete):
        """Gives a complete folder the name `best`, and removes the one that had it."""
        previous = None
        if os.path.lexists(self.path):
            previous = files.private(self.path, os.mkdir)
            os.rename(self.path, previous)
        os.rename(complete, self.path)
        files.sync(self._directory)
        if previous:
            _discard(previous)

    def _report_foreign(self, figures):
        """Prints, once, why the folder is not replaced.

        Args:
          figures: what is in its best.json, or None if that cannot be read.
        """
        if self._has_reported:
            return
        self._has_reported = True
        flag = '--train_dir' if self._is_locked else '--eval_dir'
        if figures is None:
            say(f'best       {self.path} cannot be read as a best checkpoint of this program and is kept; '
                f'remove it, or use another {flag}')
        else:
            say(f'best       {self.path} belongs to another run or other evaluation settings and is kept; '
                f'use another {flag}')

    def tidy(self, step: int | None = None) -> None:
        """Removes what killed processes left, or completes it; the caller holds the lock of the directory.

        A process that was killed before it could rename a better checkpoint, or between the two renames, leaves
        complete folders with private names. The best of them gets its name.

        Args:
          step: the one that the run in the directory goes on from, after which it evaluates again; None in an eval_dir.
        """
        self._complete = None
        names = [name for name in os.listdir(self._directory) if files.is_private(name, BEST)]
        paths = [os.path.join(self._directory, name) for name in names]
        abandoned = [path for path in paths if _is_abandoned(path)]
        best = self.figures()
        if step is not None and best and best[_EVALUATION] == self._evaluation and best['step'] > step:
            _set_aside(self.path, f'the run goes on from step {step}')  # newer checkpoints cannot be read
            best = None
        found = [(figures['precision'], -figures['step'], path) for path in abandoned if (figures := _figures(path))
                 and (step is None or figures['step'] <= step)]
        if found:
            precision, _, path = max(found)
            is_same = best and best[_EVALUATION] == _figures(path)[_EVALUATION]
            if not os.path.lexists(self.path) or (is_same and precision > best['precision']):
                abandoned.remove(path)
                self._replace(path)
        for path in abandoned:
            _discard(path)

    def abandon(self, step: int) -> None:
        """Keeps the best checkpoint of a run that has failed, beside `best` if its step will be taken again.

        Args:
          step: that of the newest checkpoint, or -1.
        """
        if self._complete and _figures(self._complete)['step'] > step:
            _set_aside(self._complete, 'the run failed before its next checkpoint')
            self._complete = None
        self.publish()


def _set_aside(folder, why):
    """Gives a folder with a best checkpoint a name that no program looks for, and says so."""
    target = os.path.join(os.path.dirname(folder), f"{BEST}-{_figures(folder)['step']}")
    while os.path.lexists(target):
        target += '_'
    os.rename(folder, target)
    say(f'set aside  {target}: {why}')


def _discard(folder):
    """Removes a folder with a checkpoint that is no longer the best; one with the user's files in it is set aside."""
    figures = os.path.join(folder, _FIGURES)
    names = [name.removesuffix(_COPY) for name in os.listdir(folder)]
    is_ours = all(name in (SETTINGS, _FIGURES, _LOCK) or is_of_checkpoint(name) or files.is_private(name, _FIGURES)
                  for name in names)
    if not is_ours and _figures(folder):
        _set_aside(folder, 'it holds files that this program did not write')
    elif is_ours:
        if os.path.exists(figures):  # first: what a kill leaves of the rest is known to be abandoned
            os.remove(figures)
        files.remove(folder)


def _figures(folder):
    """Returns the figures of the best checkpoint in a folder, or None if there is none that this program wrote."""
    try:
        with open(files.opened(os.path.join(folder, _FIGURES))) as stream:
            figures = json.load(stream)
        is_valid = isinstance(figures['precision'], float) and isinstance(figures['step'], int) and isinstance(
            figures[_EVALUATION], dict)
    except (OSError, ValueError, KeyError, TypeError, UsageError):
        return None
    has_checkpoint = glob.glob(os.path.join(glob.escape(folder), '*.index'))
    return figures if is_valid and has_checkpoint else None


def _is_abandoned(folder):
    """Returns whether the process that made a candidate was killed."""
    try:
        descriptor = files.opened(os.path.join(folder, _LOCK), os.O_RDWR)
    except OSError:
        return True  # it was killed before it made the lock, or after it had removed it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False  # it is alive, or this file system has no locks
    finally:
        os.close(descriptor)
    return True


def _make_independent(path):
    """Replaces a hard link by a copy, which does not change when the file is written to under its other name."""
    if os.stat(path).st_nlink > 1:
        shutil.copyfile(path, path + _COPY)
        os.replace(path + _COPY, path)


def _link(source, target):
    """Makes a hard link, which takes no space and survives the deletion of `source`; or a copy, if it cannot."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # such as another file system
        shutil.copyfile(source, target)
