"""Decides when a run ends."""
from collections.abc import Mapping, Sequence
from typing import Any

from cifar10.run.best import counting, is_better
from cifar10.run.reporter import due
from cifar10.settings.training import TrainSettings


def ended(evaluations: Sequence[Mapping[str, Any]], settings: TrainSettings, step: int,
          last_step: int | None) -> str | None:
    """Returns the setting that has ended a run by a step: 'patience', 'epochs' or 'max_steps'; None if steps remain.

    Only records decide, so a resumed run ends at the same step as an unbroken one.

    Args:
      evaluations: the records of the run's evaluations, in step order; later steps do not count.
      last_step: the run's planned last step; None if unknown.
    """
    if settings.run.patience and _waited(evaluations, settings, step) >= settings.run.patience:
        return 'patience'
    if last_step is not None and step >= last_step:
        return 'epochs' if settings.run.epochs else 'max_steps'
    return None


def _waited(evaluations, settings, step):
    """Returns the number of evaluations after the best one.

    An evaluation counts only at a multiple of `--eval_steps`. Other evaluations ended a run that the user extended
    later. A run with the longer length from the start would not have them.
    """
    figure, best, waited = counting(settings), None, 0
    for record in evaluations:
        if record['step'] <= step and due(settings.reports.eval_steps, record['step']):
            best, waited = (record, 0) if is_better(record, best, figure) else (best, waited + 1)
    return waited if best else 0
