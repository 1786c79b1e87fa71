"""The best checkpoint of an evaluator, kept as a copy that training does not delete."""
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
from cifar10.run.train_dir import SETTINGS

_NAME, _FIGURES, _LOCK = 'best', 'best.json', 'lock'


def folder(eval_dir: str) -> str:
    """Returns the folder in an eval_dir in which the best checkpoint is."""
    return os.path.join(eval_dir, _NAME)


class Best:
    """The folder `best` of an eval_dir: a checkpoint, the settings of its run, and its figures as JSON.

    Programs can read it as a train_dir. It is replaced as a whole, and only by a checkpoint of the same run and
    evaluation settings. A candidate has a private name (see `files`) and holds a lock as long as its process lives,
    by which others know what a process that was killed has left.

    Args:
      eval_dir: of the evaluator.
      of: what is evaluated and how.

    Attributes:
      path: of the folder.
    """

    def __init__(self, eval_dir: str, of: dict[str, Any]):
        self.path, self._eval_dir, self._of = folder(eval_dir), eval_dir, of
        self._told = False

    def figures(self) -> dict | None:
        """Returns the figures of the best checkpoint so far; None if there is none."""
        return _figures(self.path)

    @contextlib.contextmanager
    def candidate(self, prefix: str) -> Iterator[str]:
        """Context with a folder that holds a checkpoint, so that it is there after its evaluation, too."""
        with contextlib.ExitStack() as stack:
            with files.locked(self._eval_dir):
                self._tidy()
                folder = tempfile.mkdtemp(prefix=f'.{_NAME}.', dir=self._eval_dir)
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                stack.enter_context(files.locked(folder))
            # The index last: a checkpoint is there when its index is.
            paths = sorted(glob.glob(glob.escape(prefix) + '.*'), key=lambda path: path.endswith('.index'))
            for path in [*paths, os.path.join(os.path.dirname(prefix), SETTINGS)]:
                with contextlib.suppress(FileNotFoundError):  # rotated away, which the evaluation finds out
                    _link(path, os.path.join(folder, os.path.basename(path)))
            yield folder

    def offer(self, candidate: str, step: int, precision: float, **figures: Any) -> bool:
        """Takes a candidate if its precision is higher than that of all before it; returns whether it does.

        The caller holds the lock of the eval_dir.

        Args:
          candidate: what `candidate` gave, of a checkpoint that was evaluated.
          step: of the checkpoint.
          precision: of it.
          figures: what else is known of it.

        Raises:
          OSError: it cannot be written. What was there stays.
        """
        self._tidy()
        best = self.figures()
        if os.path.lexists(self.path) and (best is None or best['of'] != self._of):
            if not self._told:
                why = ('cannot be read as a best checkpoint of this program and is kept; remove it, or use'
                       if best is None else
                       'belongs to another run or other evaluation settings and is kept; use')
                print(f'best       {self.path} {why} another --eval_dir')
                self._told = True
            return False
        if best and best['precision'] >= precision:
            return False
        files.replace(os.path.join(candidate, _FIGURES), json.dumps(
            dict(step=step, precision=precision, **figures, of=self._of), indent=2) + '\n')
        os.chmod(candidate, 0o755)
        os.remove(os.path.join(candidate, _LOCK))
        for name in os.listdir(candidate):
            _copy_alone(os.path.join(candidate, name))
        files.sync_tree(candidate)
        replaced = None
        if best:
            replaced = tempfile.mkdtemp(prefix=f'.{_NAME}.', dir=self._eval_dir)
            os.rename(self.path, replaced)
        try:
            os.rename(candidate, self.path)
        except OSError:
            if replaced:
                os.rename(replaced, self.path)
            raise
        files.sync(self._eval_dir)
        if replaced:
            shutil.rmtree(replaced, ignore_errors=True)
        return True

    def _tidy(self):
        """Removes what evaluators that were killed have left; the caller holds the lock of the eval_dir.

        One that was killed between the two renames of a replacement has left two folders with figures and none of the
        name; the better one gets it.
        """
        names = [name for name in os.listdir(self._eval_dir) if files.is_private(name, _NAME)]
        left = [path for name in names if _abandoned(path := os.path.join(self._eval_dir, name))]
        whole = [path for path in left if _figures(path)]
        if whole and not os.path.lexists(self.path):
            best = max(whole, key=lambda path: _figures(path)['precision'])
            os.rename(best, self.path)
            left.remove(best)
        for path in left:
            files.remove(path)


def _figures(folder):
    """Returns the figures of a best checkpoint; None if there are none that can be read as this program's."""
    try:
        with open(os.path.join(folder, _FIGURES)) as stream:
            figures = json.load(stream)
        is_ours = isinstance(figures['precision'], float) and isinstance(figures['of'], dict)
        return figures if is_ours and glob.glob(os.path.join(glob.escape(folder), '*.index')) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _abandoned(folder):
    """Returns whether no process holds a candidate any more."""
    try:
        descriptor = os.open(os.path.join(folder, _LOCK), os.O_RDWR)
    except OSError:
        return True  # its process was killed before it had the lock, or after it had removed it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False  # it is held, or this file system has no locks
    finally:
        os.close(descriptor)
    return True


def _copy_alone(path):
    """Makes a file that has other names a copy of its own, which does not change when somebody writes to those."""
    if os.stat(path).st_nlink > 1:
        shutil.copyfile(path, path + '.copy')
        os.replace(path + '.copy', path)


def _link(source, target):
    """Links a file, which costs nothing and outlives its first name; or copies it, to another file system."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
