"""Which evaluation of a run is better than another, and whether a run has waited for a better one long enough."""
import math
from collections.abc import Mapping
from typing import Any

from cifar10.run import metrics
from cifar10.run.reporter import due
from cifar10.settings.presets import UNWEIGHTED
from cifar10.settings.training import TrainSettings


def counting(settings: TrainSettings) -> str:
    """Returns the name of the figure that counts in evaluations: with class weights, each class counts alike."""
    return 'accuracy' if settings.recipe.class_weights == UNWEIGHTED else 'mean_recall'


def is_better(evaluation: Mapping[str, Any], best: Mapping[str, Any] | None, figure: str) -> bool:
    """Returns whether an evaluation is better than the best one before it, which is None for the first evaluation.

    Fewer predictions that are not finite are better, and if no prediction is finite, the evaluation is never the best.
    On ties, as are usual with few test images, the lower cross entropy is better. It compares seven digits, because
    records have no more, and a run that is resumed has nothing but the records.

    Args:
      evaluation, best: the figures of evaluations, by their names. That of an earlier version may lack the one that
        counts.
      figure: the name of the one that counts.
    """
    if evaluation.get('not_finite') and evaluation['not_finite'] == evaluation['examples']:
        return False
    return not best or figure not in best or _rank(evaluation, figure) > _rank(best, figure)


def _rank(evaluation, figure):
    loss = evaluation.get('cross_entropy')  # None in a record if it was not finite
    is_finite = loss is not None and math.isfinite(loss)
    return (-evaluation.get('not_finite', 0), metrics.rounded(evaluation[figure]),
            -metrics.rounded(loss) if is_finite else -math.inf)


def patience_spent(train_dir: str, step: int, settings: TrainSettings) -> int | None:
    """Returns the step of the best evaluation if `--patience` ends a run after a step; None if the run goes on.

    Only the records of evaluations decide, so a run that is killed and resumed ends where an unbroken one does. An
    evaluation counts only at a multiple of `--eval_steps`. Another was the last one of a run that was made longer
    later, and a run of that length from its start does not have it.
    """
    patience, every, figure = settings.run.patience, settings.reports.eval_steps, counting(settings)
    best, since = None, 0
    for record in metrics.read(train_dir, metrics.EVAL) if patience else ():
        is_counted = record['step'] <= step and due(every, record['step'])  # later ones are of steps that are repeated
        if is_counted and figure in record:
            best, since = (record, 0) if is_better(record, best, figure) else (best, since + 1)
    return best['step'] if best and since >= patience else None
