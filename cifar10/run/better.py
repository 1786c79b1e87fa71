"""Which evaluation of a run is better than another, and whether a run has waited for a better one long enough."""
from collections.abc import Mapping
from typing import Any

from cifar10.run import metrics
from cifar10.run.reporter import due
from cifar10.settings.training import TrainSettings


def is_better(evaluation: Mapping[str, Any], best: Mapping[str, Any] | None) -> bool:
    """Returns whether an evaluation is better than the best one before it, which is None for the first evaluation.

    Only this function knows which figure counts. It compares seven digits, because records have no more, and a run that
    is resumed has nothing but the records.

    Args:
      evaluation, best: the figures of evaluations, by their names.
    """
    return best is None or metrics.rounded(evaluation['precision']) > metrics.rounded(best['precision'])


def patience_spent(train_dir: str, step: int, settings: TrainSettings) -> int | None:
    """Returns the step of the best evaluation if `--patience` ends a run after a step; None if the run goes on.

    Only the records of evaluations decide, so a run that is killed and resumed ends where an unbroken one does. An
    evaluation counts only at a multiple of `--eval_steps`. Another was the last one of a run that was made longer
    later, and a run of that length from its start does not have it.
    """
    patience, every = settings.run.patience, settings.reports.eval_steps
    best, since = None, 0
    for record in metrics.read(train_dir, metrics.EVAL) if patience else ():
        if record['step'] <= step and due(every, record['step']):  # later ones are of steps that are repeated
            best, since = (record, 0) if is_better(record, best) else (best, since + 1)
    return best['step'] if best and since >= patience else None
