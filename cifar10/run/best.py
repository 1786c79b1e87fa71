"""The best checkpoint of an evaluator, kept as a copy that training does not delete."""
import contextlib
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from cifar10 import files
from cifar10.run.train_dir import SETTINGS

_FIGURES = 'best.json'


def folder(eval_dir: str) -> str:
    """Returns the folder in an eval_dir in which the best checkpoint is."""
    return os.path.join(eval_dir, 'best')


class Best:
    """The folder `best` of an eval_dir: a checkpoint, the settings of its run, and its figures as JSON.

    Programs can read it as a train_dir. It is replaced as a whole, and only by a checkpoint of the same run and
    evaluation settings.

    Args:
      eval_dir: of the evaluator.
      of: what is evaluated and how.

    Attributes:
      path: of the folder.
    """

    def __init__(self, eval_dir: str, of: dict[str, Any]):
        self.path, self._of = folder(eval_dir), of
        self._told = False

    def figures(self) -> dict | None:
        """Returns the figures of the best checkpoint so far; None if there is none."""
        if os.path.isdir(self.path + '.old') and not os.path.exists(self.path):  # killed between the two
            os.rename(self.path + '.old', self.path)
        try:
            with open(os.path.join(self.path, _FIGURES)) as stream:
                return json.load(stream)
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def candidate(self, prefix: str) -> Iterator[str]:
        """Context with a folder that holds a checkpoint, so that it is there after its evaluation, too."""
        folder = tempfile.mkdtemp(prefix='.best.', dir=os.path.dirname(self.path))
        try:
            # The index last: a checkpoint is there when its index is.
            paths = sorted(glob.glob(glob.escape(prefix) + '.*'), key=lambda path: path.endswith('.index'))
            for path in [*paths, os.path.join(os.path.dirname(prefix), SETTINGS)]:
                with contextlib.suppress(FileNotFoundError):  # rotated away, which the evaluation finds out
                    _link(path, os.path.join(folder, os.path.basename(path)))
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def offer(self, candidate: str, step: int, precision: float, **figures: Any) -> bool:
        """Takes a candidate if its precision is higher than that of all before it; returns whether it does.

        Args:
          candidate: what `candidate` gave, of a checkpoint that was evaluated.
          step: of the checkpoint.
          precision: of it.
          figures: what else is known of it.

        Raises:
          OSError: it cannot be written. What was there stays.
        """
        best = self.figures()
        if best is None and os.path.exists(self.path) or best and best.get('of') != self._of:
            if not self._told:
                print(f'best       {self.path} belongs to another run or other evaluation settings and is kept; use '
                      'another --eval_dir')
                self._told = True
            return False
        if best and best['precision'] >= precision:
            return False
        files.replace(os.path.join(candidate, _FIGURES), json.dumps(
            dict(step=step, precision=precision, **figures, of=self._of), indent=2) + '\n')
        os.chmod(candidate, 0o755)
        if best:
            os.rename(self.path, self.path + '.old')
        os.rename(candidate, self.path)
        shutil.rmtree(self.path + '.old', ignore_errors=True)
        return True


def _link(source, target):
    """Links a file, which costs nothing and outlives its first name; or copies it, to another file system."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
