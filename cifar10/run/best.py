"""The best checkpoint of a run that evaluates itself, kept where training does not delete it.

It is the only checkpoint in the folder `best`, which programs can read as a train_dir. A better one is published beside
it, as a run's checkpoints are, and then the old one is deleted. So there is always a complete one.
"""
import json
import os
from typing import Any

from cifar10.base import files
from cifar10.base.console import say
from cifar10.base.directories import BEST
from cifar10.base.errors import UsageError
from cifar10.run import metrics
from cifar10.run.better import is_better
from cifar10.run.folder import FIGURES, SETTINGS, glance, is_unfinished, read_json, step_of, step_without_index
from cifar10.run.train_dir import TrainDir, remove

_EVALUATION = 'of'  # the key in best.json under which the run is
_STEPS = 'steps'  # and the steps of the checkpoints that this program has put beside it: a kill may leave two


class Best:
    """The best checkpoint of a run, with the record of its start and, in best.json, its figures.

    Only a checkpoint of the same run replaces it. The caller holds the lock of the train_dir.

    Args:
      record: of its start, as the text of config.json.
      figure: the name of the figure that counts.

    Attributes:
      path: of the folder.
    """

    def __init__(self, train_dir: str, run: str, record: str, figure: str = 'accuracy'):
        self.path = os.path.join(train_dir, BEST)
        self._folder = TrainDir(self.path)
        self._train_dir = train_dir
        self._run = run
        self._record = record
        self._figure = figure
        self._has_reported = False

    def figures(self) -> dict | None:
        """Returns the figures of the best checkpoint so far, or None if there is none."""
        figures = self._stored()
        return figures if figures and figures['step'] in map(step_of, glance(self.path).checkpoints) else None

    def describe(self) -> str:
        """Returns a phrase with the step of the best checkpoint, its figure and its folder; '' if there is none."""
        figures = self.figures()
        if not figures or not self._is_replaceable():
            return ''
        name = self._figure if self._figure in figures else 'accuracy'
        return f"step {figures['step']}, {name.replace('_', ' ')} {figures[name]:.3f}, in {self.path}"

    def candidate(self) -> str | None:
        """Makes room for a checkpoint that is going to be evaluated; returns a prefix, to which '-<step>' is added.

        Returns None, and prints the reason once, if what is in the folder must stay.
        """
        if not self._is_replaceable():
            if not self._has_reported:
                say('best', f"{self.path} holds something other than this run's best checkpoint, so it is left "
                            'alone and no best checkpoint is kept; move it away')
            self._has_reported = True
            return None
        if not os.path.isdir(self.path):
            os.makedirs(self.path)
            files.sync(self._train_dir)
        self._tidy()
        return self._folder.partial_prefix

    def keep(self, step: int, **figures: Any) -> bool:
        """Keeps the candidate, with its figures, if it is the best so far; returns whether it is.

        A best checkpoint of this step or a later one does not count: the run was resumed before it and took these steps
        again.

        Raises:
          OSError: the folder cannot be written. The previous best checkpoint stays.
        """
        best, new = self.figures(), {'step': step, **metrics.recorded(figures), _EVALUATION: {'run': self._run}}
        is_repeated = best and new.items() <= best.items()
        if is_repeated or not is_better(new, best if best and best['step'] < step else None, self._figure):
            self._folder.remove_checkpoint(f'{self._folder.partial_prefix}-{step}')
            return False
        if best and best['step'] == step:  # its files have the names of the new ones
            self._folder.remove_checkpoint(f'{self._folder.checkpoint_prefix}-{step}')
            best = None
        files.replace(os.path.join(self.path, SETTINGS), self._record)
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
        for prefix in glance(self.path).checkpoints:
            if step_of(prefix) in steps:
                self._folder.remove_checkpoint(prefix)
        remove(os.path.join(self.path, name) for name in glance(self.path).files
               if is_unfinished(name) or step_without_index(name) in steps)
        if best and best.get(_STEPS) != [best['step']]:
            self._write(best, [best['step']])

    def _stored(self):
        """Returns what best.json holds, or None if there is none, or it is not this program's."""
        try:
            figures = read_json(os.path.join(self.path, FIGURES))
            return figures if {'step', 'accuracy'} <= figures.keys() and figures[_EVALUATION].keys() else None
        except (AttributeError, KeyError, UsageError):  # it is None, or somebody else's
            return None

    def _is_replaceable(self):
        found = glance(self.path)
        if stored := self._stored():
            is_trained_on = metrics.NAME in found.files
            return stored[_EVALUATION].get('run') == self._run and not is_trained_on
        return not found.checkpoints and FIGURES not in found.files
