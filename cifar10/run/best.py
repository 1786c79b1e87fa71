"""The best checkpoint of an evaluator, or of a run that evaluates itself, kept where training does not delete it.

It is the only checkpoint in the folder `best`, which programs can read as a train_dir. A better one is published beside
it, as a run's checkpoints are, and then the old one is deleted. So there is a whole one at any moment.
"""
import contextlib
import json
import os
import shutil
from typing import Any

from cifar10.base import files
from cifar10.base.console import say
from cifar10.base.directories import BEST
from cifar10.base.errors import UsageError
from cifar10.run import metrics
from cifar10.run.names import FIGURES, SETTINGS, is_unfinished, parts, step_of, step_without_index
from cifar10.run.train_dir import TrainDir

_EVALUATION = 'of'  # the key in best.json under which the evaluation is
_STEPS = 'steps'  # and the steps of the checkpoints that this program has put beside it: a kill may leave two


class Best:
    """The best checkpoint of a directory, with the settings of its run and, in best.json, its figures.

    Only a checkpoint of the same run that was evaluated in the same way takes its place. The caller holds the lock of
    the directory.

    Args:
      directory: the eval_dir or train_dir.
      evaluation: what is evaluated and how.
      flag: the flag that gives the directory, for messages.

    Attributes:
      path: the path of the folder.
    """

    def __init__(self, directory: str, evaluation: dict[str, Any], flag: str):
        self.path = os.path.join(directory, BEST)
        self._folder = TrainDir(self.path)
        self._directory = directory
        self._evaluation = evaluation
        self._flag = flag
        self._has_reported = False
        self._settings = None  # the text of the config.json that goes with the candidate, if there is one

    def figures(self) -> dict | None:
        """Returns the figures of the best checkpoint so far, or None if there is none."""
        figures = self._stored()
        return figures if figures and figures['step'] in map(step_of, self._folder.checkpoints()) else None

    def candidate(self, source: str) -> str | None:
        """Makes room for a checkpoint that is going to be evaluated; returns a prefix, to which '-<step>' is added.

        Returns None, and says why once, if what is in the folder must stay.

        Args:
          source: the directory of the run, whose settings are kept with the checkpoint.
        """
        if reason := self._reason_to_stay(source):
            if not self._has_reported:
                say(f'best       {self.path} {reason}use another {self._flag}')
            self._has_reported = True
            return None
        if not os.path.isdir(self.path):
            os.makedirs(self.path)
            files.sync(self._directory)
        self._tidy()
        self._settings = None
        path = os.path.join(source, SETTINGS)
        with contextlib.suppress(FileNotFoundError), files.named(path), open(
                files.opened(path), encoding='utf-8', errors='surrogateescape') as stream:
            self._settings = stream.read()
        return self._folder.partial_prefix

    def copy(self, prefix: str, step: int) -> None:
        """Copies a checkpoint of a step as the `candidate`, so that it stays even if training deletes it meanwhile."""
        if os.path.isfile(prefix):
            say(f"best       {prefix} is in TensorFlow's V1 format, of which no copy is kept")
            return
        if target := self.candidate(os.path.dirname(prefix)):
            with contextlib.suppress(FileNotFoundError):  # training has deleted it
                for part in parts(prefix):
                    shutil.copyfile(part, f'{target}-{step}{part.removeprefix(prefix)}')

    def keep(self, step: int, precision: float, **figures: Any) -> bool:
        """Keeps the candidate if there is one, and its precision is the highest; returns whether it is the best now.

        Of two checkpoints of one step, the first is kept, because files of the same names cannot be replaced at once.

        Args:
          step: the step of the candidate.
          precision: its precision.
          figures: other figures to store.

        Raises:
          OSError: the folder cannot be written. The previous best checkpoint stays.
        """
        best, candidate = self.figures(), f'{self._folder.partial_prefix}-{step}'
        if not os.path.exists(candidate + '.index'):
            return False
        if best and (best['precision'] >= precision or best['step'] == step):
            self._folder.remove_checkpoint(candidate)
            return False
        new = {'step': step, 'precision': precision, **figures, _EVALUATION: self._evaluation}
        if self._settings:
            files.replace(os.path.join(self.path, SETTINGS), self._settings)
        steps = [best['step'], step] if best else [step]
        self._write(best or new, steps)  # first, so that a checkpoint in the folder is known to be this program's
        self._folder.publish(step)
        self._write(new, steps)  # then, so that the figures are those of a checkpoint that is there
        self._tidy()
        return True

    def _write(self, figures, steps):
        text = json.dumps({**figures, _STEPS: steps}, indent=2)
        files.replace(os.path.join(self.path, FIGURES), text + '\n')

    def _tidy(self):
        """Removes what killed processes left: of the checkpoints that best.json names all but the best."""
        stored, best = self._stored() or {}, self.figures() or {}
        steps = [step for step in (*stored.get(_STEPS, ()), stored.get('step')) if step != best.get('step')]
        for prefix in self._folder.checkpoints():
            if step_of(prefix) in steps:
                self._folder.remove_checkpoint(prefix)
        for name in os.listdir(self.path):
            if is_unfinished(name) or step_without_index(name) in steps:
                os.remove(os.path.join(self.path, name))
        if best and best.get(_STEPS) != [best['step']]:
            self._write(best, [best['step']])

    def _stored(self):
        """Returns what best.json holds, or None if there is none, or it is not this program's."""
        path = os.path.join(self.path, FIGURES)
        try:
            with files.named(path), open(files.opened(path)) as stream:
                figures = json.load(stream)
            is_valid = isinstance(figures['precision'], float) and isinstance(figures['step'], int) and isinstance(
                figures[_EVALUATION], dict) and isinstance(figures.get(_STEPS, []), list)
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, UsageError):
            return None
        return figures if is_valid else None

    def _reason_to_stay(self, source):
        """Returns why nothing in the folder may be replaced, for a line, or None."""
        if stored := self._stored():
            evaluation = stored[_EVALUATION]
            if evaluation.get('run') is None and TrainDir(source).is_run(None):  # it may have a record by now
                evaluation = {**evaluation, 'run': self._evaluation['run']}
            if evaluation != self._evaluation:
                return 'belongs to another run or other evaluation settings and is kept; '
            if os.path.exists(os.path.join(self.path, metrics.NAME)):
                return 'holds a run that went on from the best checkpoint and is kept; '
        elif os.path.isfile(self.path) or self._folder.checkpoints() or os.path.lexists(
                os.path.join(self.path, FIGURES)):
            return 'cannot be read as a best checkpoint of this program and is kept; remove it, or '
        return None
