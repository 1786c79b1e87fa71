"""The best checkpoint of an evaluator, or of a run that evaluates itself, kept where training does not delete it."""
import contextlib
import fcntl
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from cifar10 import files
from cifar10.console import say
from cifar10.run.train_dir import BEST, SETTINGS, parts

_FIGURES = 'best.json'
_EVALUATION = 'of'  # the key in best.json under which the evaluation is
_LOCK = 'lock'


def folder(eval_dir: str) -> str:
    """Returns the folder of the best checkpoint in an eval_dir."""
    return os.path.join(eval_dir, BEST)


def remove(directory: str, run: str) -> None:
    """Removes the best checkpoint of a run that is about to be deleted; that of another run stays.

    Args:
      directory: the train_dir, whose lock the caller holds.
      run: identifies the run, as in `Stored`.
    """
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        figures = _figures(path) if name == BEST or files.is_private(name, BEST) else None
        if figures and figures[_EVALUATION].get('run') == run:
            # Under a private name and without its figures: after a kill, the rest is known to be abandoned.
            private = tempfile.mkdtemp(prefix=f'.{BEST}.', dir=directory)
            os.rename(path, private)
            os.remove(os.path.join(private, _FIGURES))
            files.remove(private)


class Best:
    """The folder `best` of an eval_dir or train_dir: a checkpoint, its run's settings, and its figures in best.json.

    Programs can read it as a train_dir. It is replaced as a whole, and only by a checkpoint of the same run that
    was evaluated with the same settings. A candidate is a folder with a private name (see `files`). Its process
    holds its lock, so that other processes can tell whether that process was killed.

    Args:
      directory: that of the evaluator, or of the run.
      evaluation: what is evaluated and how. Only precisions of the same evaluation are compared.
      is_locked: whether the caller holds the lock of the directory all the time, as a run does; an evaluator holds it
        for the time of a call, because there may be others.

    Attributes:
      path: the path of the folder.
    """

    def __init__(self, directory: str, evaluation: dict[str, Any], is_locked: bool = False):
        self.path = folder(directory)
        self._directory = directory
        self._evaluation = evaluation
        self._is_locked = is_locked
        self._has_reported = False

    def figures(self) -> dict | None:
        """Returns the figures of the best checkpoint so far, or None if there is none."""
        return _figures(self.path)

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
            with contextlib.nullcontext() if self._is_locked else files.locked(self._directory):
                self.tidy()
                folder = tempfile.mkdtemp(prefix=f'.{BEST}.', dir=self._directory)
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                stack.enter_context(files.locked(folder))
            yield folder

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
        self.tidy()
        best = self.figures()
        if os.path.lexists(self.path) and (best is None or best[_EVALUATION] != self._evaluation):
            self._report_foreign(best)
            return False
        if best and best['precision'] >= precision:
            return False
        figures = dict(step=step, precision=precision, **figures)
        figures[_EVALUATION] = self._evaluation
        files.replace(os.path.join(candidate, _FIGURES), json.dumps(figures, indent=2) + '\n')
        os.chmod(candidate, 0o755)
        os.remove(os.path.join(candidate, _LOCK))
        for name in os.listdir(candidate):
            _make_independent(os.path.join(candidate, name))
        files.sync_tree(candidate)
        previous = None
        if best:
            previous = tempfile.mkdtemp(prefix=f'.{BEST}.', dir=self._directory)
            os.rename(self.path, previous)
        try:
            os.rename(candidate, self.path)
        except OSError:
            if previous:
                os.rename(previous, self.path)
            raise
        files.sync(self._directory)
        if previous:
            shutil.rmtree(previous, ignore_errors=True)
        return True

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

    def tidy(self) -> None:
        """Removes the candidates of processes that were killed; the caller holds the lock of the directory.

        A process that was killed between the two renames of a replacement leaves two complete folders with
        private names, and no folder `best`. The better one is given that name.
        """
        names = [name for name in os.listdir(self._directory) if files.is_private(name, BEST)]
        paths = [os.path.join(self._directory, name) for name in names]
        abandoned = [path for path in paths if _is_abandoned(path)]
        complete = [path for path in abandoned if _figures(path)]
        if complete and not os.path.lexists(self.path):
            best = max(complete, key=lambda path: _figures(path)['precision'])
            os.rename(best, self.path)
            abandoned.remove(best)
        for path in abandoned:
            files.remove(path)


def _figures(folder):
    """Returns the figures of the best checkpoint in a folder, or None if there is none that this program wrote."""
    try:
        with open(os.path.join(folder, _FIGURES)) as stream:
            figures = json.load(stream)
        is_valid = isinstance(figures['precision'], float) and isinstance(figures[_EVALUATION], dict)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    has_checkpoint = glob.glob(os.path.join(glob.escape(folder), '*.index'))
    return figures if is_valid and has_checkpoint else None


def _is_abandoned(folder):
    """Returns whether the process that made a candidate was killed."""
    try:
        descriptor = os.open(os.path.join(folder, _LOCK), os.O_RDWR)
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
        shutil.copyfile(path, path + '.copy')
        os.replace(path + '.copy', path)


def _link(source, target):
    """Makes a hard link, which takes no space and survives the deletion of `source`; or a copy, if it cannot."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # such as another file system
        shutil.copyfile(source, target)
