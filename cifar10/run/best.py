"""The best checkpoint of an evaluator, or of a run that evaluates itself, kept where training does not delete it.

A run's is complete and on the disk, under a private name, before the next checkpoint is, and gets its own name after
it. So it is always of a step that a start goes on from, and one that a kill left under its private name is
completed or, if its step is taken again, removed.
"""
import contextlib
import glob
import json
import math
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


def folder(eval_dir: str) -> str:
    """Returns the folder of the best checkpoint in an eval_dir."""
    return os.path.join(eval_dir, BEST)


def of_run(directory: TrainDir) -> list[str]:
    """Returns the paths of the folders with a best checkpoint of the run in a train_dir; other runs do not count."""
    stored = directory.stored()
    if stored is None or stored.run is None:
        return []
    paths = [folder(directory.path), *_private(directory.path)]
    return [path for path in paths if (figures := _figures(path)) and figures[_EVALUATION].get('run') == stored.run]


def deletes(directory: TrainDir, prefix: str) -> bool:
    """Returns whether a start that deletes the run in a train_dir deletes a checkpoint with it."""
    folder, name = os.path.split(os.path.realpath(prefix))
    folders = [directory.path, *of_run(directory)]
    return folder in map(os.path.realpath, folders) and is_of_checkpoint(name + '.index')


def remove(directory: TrainDir) -> None:
    """Removes the best checkpoint of the run in a train_dir that is about to be deleted; the caller holds its lock."""
    for path in of_run(directory):
        _discard(_moved_away(path))


class Best:
    """The folder `best` of an eval_dir or train_dir: a checkpoint, its run's settings, and its figures in best.json.

    Programs can read it as a train_dir. It is replaced as a whole, and only by a checkpoint of the same run that
    was evaluated with the same settings. What is to become the best is a folder with a private name (see `files`).
    The caller holds the lock of the directory.

    Args:
      directory: the eval_dir or train_dir.
      evaluation: what is evaluated and how. Only precisions of the same evaluation are compared.
      flag: the flag that gives the directory, for messages.

    Attributes:
      path: the path of the folder.
    """

    def __init__(self, directory: str, evaluation: dict[str, Any], flag: str):
        self.path = folder(directory)
        self._directory = directory
        self._evaluation = evaluation
        self._flag = flag
        self._has_reported = False
        self._better = None  # the path of a complete folder, to which `publish` gives the name

    def figures(self) -> dict | None:
        """Returns the figures of the best checkpoint so far, or None if there is none."""
        return _figures(self._better or self.path)

    @contextlib.contextmanager
    def candidate(self, source: str, prefix: str | None = None) -> Iterator[str]:
        """Context with a folder for a checkpoint that is evaluated; it is deleted unless it becomes the best.

        Args:
          source: the directory of the run, whose settings are copied into the folder.
          prefix: the checkpoint, which is copied too, so that it stays even if training deletes it meanwhile; None if
            the caller writes a checkpoint into the folder.
        """
        candidate = files.private(self.path, os.mkdir)
        try:
            for path in [os.path.join(source, SETTINGS), *(parts(prefix) if prefix else ())]:
                try:
                    shutil.copyfile(path, os.path.join(candidate, os.path.basename(path)))
                except OSError:
                    if os.path.exists(path):  # else it was deleted meanwhile, which the evaluation finds out
                        raise
            yield candidate
        finally:
            if candidate != self._better:
                shutil.rmtree(candidate, ignore_errors=True)

    def offer(self, candidate: str, step: int, precision: float, **figures: Any) -> bool:
        """Takes a candidate as the best checkpoint if its precision is the highest; returns whether it is.

        Args:
          candidate: the folder from `candidate`, whose checkpoint has been evaluated.
          step: the step of the checkpoint.
          precision: its precision.
          figures: other figures to store.

        Raises:
          OSError: the folder cannot be written. The previous best checkpoint stays.
        """
        best = self.figures()
        if os.path.lexists(self.path) and (best is None or best[_EVALUATION] != self._evaluation):
            self._report_foreign(best)
            return False
        if best and best['precision'] >= precision:
            return False
        files.sync_tree(candidate)
        figures = {'step': step, 'precision': precision, **figures, _EVALUATION: self._evaluation}
        files.replace(os.path.join(candidate, _FIGURES), json.dumps(figures, indent=2) + '\n')  # it is complete
        if self._better:
            _discard(self._better)
        self._better = candidate
        return True

    def publish(self, newest: float = math.inf) -> bool:
        """Gives the best checkpoint since the last call its name; returns whether there was one.

        Args:
          newest: the step of the run's newest checkpoint. If the best one is of a later step, because the run failed
            before its next checkpoint, it is kept under another name.

        Raises:
          OSError: it cannot be renamed. The next call of `tidy` completes it.
        """
        if self._better is None:
            return False
        is_lost = _figures(self._better)['step'] > newest
        if is_lost:
            _set_aside(self._better, 'the run failed before its next checkpoint')
        else:
            self._replace(self._better)
        self._better = None
        return not is_lost

    def _replace(self, better):
        """Gives a complete folder the name `best`, and removes the one that had it."""
        previous = _moved_away(self.path) if os.path.lexists(self.path) else None
        os.rename(better, self.path)
        files.sync(self._directory)
        if previous:
            _discard(previous)

    def _report_foreign(self, figures):
        """Reports, once, why the folder is not replaced, given the figures in its best.json; None if unreadable."""
        why, remedy = 'belongs to another run or other evaluation settings', ''
        if figures is None:
            why, remedy = 'cannot be read as a best checkpoint of this program', 'remove it, or '
        if not self._has_reported:
            say(f'best       {self.path} {why} and is kept; {remedy}use another {self._flag}')
        self._has_reported = True

    def tidy(self, step: float = math.inf) -> None:
        """Removes what killed processes left, or completes it.

        A process that was killed before it could rename a better checkpoint, or between the two renames, leaves
        complete folders with private names. The best of them gets its name.

        Args:
          step: the one that the run in the directory goes on from, after which it evaluates again.
        """
        self._better = None
        best = self.figures()
        if best and best[_EVALUATION] == self._evaluation and best['step'] > step:
            _set_aside(self.path, f'the run goes on from step {step}')  # newer checkpoints cannot be read
        for path in _private(self._directory):
            best, found = self.figures(), _figures(path)
            is_better = found and found['step'] <= step and (not os.path.lexists(self.path) or (
                best and best[_EVALUATION] == found[_EVALUATION] and best['precision'] < found['precision']))
            if is_better:
                self._replace(path)
            else:
                _discard(path)


def _private(directory):
    """Returns the paths of the folders in a directory that were to become its `best`, or were it."""
    return [os.path.join(directory, name) for name in os.listdir(directory) if files.is_private(name, BEST)]


def _moved_away(path):
    """Gives the folder `best` a private name, so that no part of it is ever taken for the best; returns its path."""
    private = files.private(os.path.join(os.path.dirname(path), BEST), os.mkdir)
    os.rename(path, private)
    return private


def _set_aside(folder, why):
    """Gives a folder with a best checkpoint a name that no program looks for, and says so."""
    target = os.path.join(os.path.dirname(folder), f"{BEST}-{_figures(folder)['step']}")
    while os.path.lexists(target):
        target += '_'
    os.rename(folder, target)
    say(f'set aside  {target}: {why}')


def _discard(folder):
    """Removes a private folder; a best checkpoint to which the user has added files is set aside."""
    if not _figures(folder):
        files.remove(folder)
    elif all(name in (SETTINGS, _FIGURES) or is_of_checkpoint(name) for name in os.listdir(folder)):
        os.remove(os.path.join(folder, _FIGURES))  # first: what a kill leaves of the rest is known to be abandoned
        files.remove(folder)
    else:
        _set_aside(folder, 'it holds files that this program did not write')


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
