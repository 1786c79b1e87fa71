"""When a run ends: the rules, for whoever takes its steps, starts it again or describes it."""
from collections.abc import Mapping, Sequence
from typing import Any

from cifar10.run.best import counting, is_better
from cifar10.run.reporter import due
from cifar10.settings.training import TrainSettings


def ended(evaluations: Sequence[Mapping[str, Any]], settings: TrainSettings, step: int,
          last_step: int | None) -> str | None:
    """Returns the setting that has ended a run by a step: 'patience', 'epochs' or 'max_steps'; None if it goes on.

    Only records decide, so a run that is killed and resumed ends where an unbroken one does.

    Args:
      evaluations: the records of the run's evaluations, in the order of their steps; those of later steps do not count.
      last_step: the step at which the run has its length; None if it is unknown.
    """
    if settings.run.patience and _waited(evaluations, settings, step) >= settings.run.patience:
        return 'patience'
    if last_step is not None and step >= last_step:
        return 'epochs' if settings.run.epochs else 'max_steps'
    return None


def _waited(evaluations, settings, step):
    """Returns how many evaluations have followed the best one.

    An evaluation counts only at a multiple of `--eval_steps`. Another was the last one of a run that was made longer
    later, and a run of that length from its start does not have it.
    """
    figure, best, waited = counting(settings), None, 0
    for record in evaluations:
        if record['step'] <= step and due(settings.reports.eval_steps, record['step']):
            best, waited = (record, 0) if is_better(record, best, figure) else (best, waited + 1)
    return waited if best else 0
