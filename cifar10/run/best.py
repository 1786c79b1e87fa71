"""The best checkpoint that an evaluator has seen: a copy of its own, which training never rotates away."""
import glob
import json
import os
import shutil
from typing import Any

from cifar10 import files
from cifar10.run.train_dir import SETTINGS, TrainDir, step_of

_FIGURES = 'best.json'


class Best:
    """The folder `best` of an eval_dir: a checkpoint, the settings of its run, and its figures as JSON.

    It is a train_dir to every program that reads one. Killed at any moment, it names a checkpoint that is whole.

    Args:
      eval_dir: of the evaluator.
      of: what is evaluated and how; figures of anything else are not compared, but replaced.

    Attributes:
      path: of the folder.
    """

    def __init__(self, eval_dir: str, of: dict[str, Any]):
        self.path, self._of = os.path.join(eval_dir, 'best'), of
        self._directory = TrainDir(self.path)

    def figures(self) -> dict | None:
        """Returns the figures of the best checkpoint so far; None if there is none of this kind."""
        try:
            with open(os.path.join(self.path, _FIGURES)) as stream:
                found = json.load(stream)
        except (OSError, ValueError):
            return None
        return found if found.get('of') == self._of and os.path.exists(self._prefix(found) + '.index') else None

    def offer(self, prefix: str, precision: float, **figures: Any) -> bool:
        """Keeps a checkpoint if its precision is higher than that of all before it; returns whether it is.

        Args:
          prefix: of the checkpoint.
          precision: of it.
          figures: what else is known of it.

        Raises:
          OSError: it cannot be copied. What was there stays.
        """
        best = self.figures()
        if best and best['precision'] >= precision:
            return False
        os.makedirs(self.path, exist_ok=True)
        target = f'{self._directory.checkpoint_prefix}-{step_of(prefix)}'
        # The index last: a checkpoint is there when its index is.
        for path in sorted(glob.glob(glob.escape(prefix) + '.*'), key=lambda path: path.endswith('.index')):
            self._copy(path, target + path.removeprefix(prefix))
        settings = os.path.join(os.path.dirname(prefix), SETTINGS)
        if os.path.exists(settings):
            self._copy(settings, os.path.join(self.path, SETTINGS))
        files.replace(os.path.join(self.path, _FIGURES), json.dumps(
            dict(step=step_of(prefix), precision=precision, **figures, of=self._of), indent=2) + '\n')
        self._remove_others(target)
        return True

    def _prefix(self, figures):
        return f"{self._directory.checkpoint_prefix}-{figures['step']}"

    def _copy(self, source, target):
        shutil.copyfile(source, target + '.part')
        os.replace(target + '.part', target)

    def _remove_others(self, kept):
        for path in glob.glob(glob.escape(self._directory.checkpoint_prefix) + '-*'):
            if not path.startswith(kept + '.') or path.endswith('.part'):
                os.remove(path)
