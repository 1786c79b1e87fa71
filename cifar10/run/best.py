"""Finds the best evaluation of a run."""
import math
from collections.abc import Mapping
from typing import Any

from cifar10.run import metrics
from cifar10.settings.presets import UNWEIGHTED
from cifar10.settings.training import TrainSettings


def counting(settings: TrainSettings) -> str:
    """Returns the name of the figure that ranks evaluations. Class weights make all classes count equally."""
    return 'accuracy' if settings.recipe.class_weights == UNWEIGHTED else 'mean_recall'


def is_better(evaluation: Mapping[str, Any], best: Mapping[str, Any] | None, figure: str) -> bool:
    """Returns whether an evaluation beats the best earlier one, which is None for the first evaluation.

    Fewer non-finite predictions are better. An evaluation without finite predictions is never the best. The lower
    loss breaks ties, which are common with few test images. It also ranks models without the figure. Comparisons
    use seven digits: records hold no more, and a resumed run knows only the records.
    """
    if evaluation.get('not_finite') and evaluation['not_finite'] == evaluation['examples']:
        return False
    if figure not in evaluation and _rank(evaluation, figure)[-1] == -math.inf:
        return False
    return not best or _rank(evaluation, figure) > _rank(best, figure)


def summary(best: Mapping[str, Any], figure: str) -> str:
    """Returns a phrase with the step and the figure of the best checkpoint."""
    name, value = figure.replace('_', ' '), best.get(figure)
    shown = f"loss {best['loss']:.5g}" if value is None else f'{name} {metrics.fraction(value)}'
    return f"step {best['step']}, {shown}"


def _rank(evaluation, figure):
    # None in a record if it was not finite
    value, loss = evaluation.get(figure), evaluation.get('cross_entropy', evaluation.get('loss'))
    ranked = [-math.inf if each is None or not math.isfinite(each) else metrics.rounded(each)
              for each in (value, None if loss is None else -loss)]
    return -evaluation.get('not_finite', 0), *ranked
