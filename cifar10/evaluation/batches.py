"""Evaluates a model function on a user's data set, and predicts with it."""
import collections
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.activity import moved
from cifar10.base.console import say
from cifar10.base.errors import RunError, UsageError
from cifar10.evaluation.classification import check_new, write_rows
from cifar10.evaluation.result import EvalResult
from cifar10.evaluation.trained import Model
from cifar10.model.recipe import Recipe
from cifar10.settings.evaluation import EvalSettings

_EVAL, _INFER = 'eval', 'infer'  # the modes of a model function and of a data function


class BatchEvaluator:
    """Evaluates a model function in mode 'eval', in the current default graph: loss and metrics on a data set.

    Args:
      name: 'FILE.py:FUNCTION', the data set.
      device: name of the device that computes the model.
    """

    def __init__(self, name: str, recipe: Recipe, device: str, batch_size: int):
        self._name = name
        with tf.device(device):
            self._built = recipe.own.built(recipe.own.batches(name, batch_size, _EVAL), _EVAL)
        self.read = tf.no_op()

    def run(self, session: tf.Session, step: int, checkpoint: str | None = None) -> EvalResult:
        """Makes one pass over the batches, as `Evaluator.run` does. Weights each batch by its number of examples."""
        losses, examples = 0.0, 0
        for found in _each(self._built, session):
            losses += float(found['loss']) * int(found['examples'])
            examples += int(found['examples'])
        if not examples:
            raise RunError(f'--dataset={self._name} has no examples in mode {_EVAL!r}')
        metrics = session.run(self._built.metrics)
        figures = {name: float(value) for name, value in metrics.items() if np.ndim(value) == 0}
        return EvalResult(step, checkpoint, dict(loss=losses / examples, **figures), examples)


def _each(built, session) -> Iterator[dict[str, Any]]:
    """Yields the results of each batch, in order."""
    session.run(built.start)
    while True:
        try:
            yield session.run(built.each, built.feeds)
        except tf.errors.OutOfRangeError:
            return
        moved()


def evaluated_data(model: Model, settings: EvalSettings) -> tuple[str, bool]:
    """Returns (the data set to evaluate a run on, whether it is the run's own)."""
    name = settings.dataset or model.record.settings.data.dataset
    is_runs = 'dataset' not in model.record.difference_to(dict(dataset=name))
    say('data', name + ('' if is_runs else "; it is not the run's, so the result is only printed"))
    return name, is_runs


def predict(settings: EvalSettings, dataset: Any = None) -> dict[str, np.ndarray | list]:
    """Returns the predictions of the newest checkpoint of a run in mode 'infer', by name.

    Predictions are arrays, or lists of rows if the shapes of rows differ between batches.

    Args:
      dataset: a function that returns a `tf.data.Dataset` of batches of features; None: the data set of the settings
        or of the run.

    Raises:
      UsageError: the run was trained on images, or the model has no predictions.
    """
    model = Model.open(settings)
    if not model.recipe.has_batches:
        raise UsageError('the run was trained on images, so it predicts classes of images; give --image')
    given = settings.dataset or model.record.settings.data.dataset if dataset is None else dataset
    batches = model.recipe.own.batches(given, model.batch_size, _INFER)
    found, rows = model.newest(), collections.defaultdict(list)

    def build():
        with tf.device(model.devices.tower_devices[0]):
            return model.recipe.own.built(batches, _INFER)
    with model.session(build) as opened:
        opened.restore(found)
        for each in _each(opened.built, opened.session):
            for name, value in each['predictions'].items():
                rows[name].append(np.atleast_1d(value))
    say('model', f'{found.prefix}, step {found.step}')
    return {name: np.concatenate(values) if len({value.shape[1:] for value in values}) == 1 else
            [row for value in values for row in value] for name, values in rows.items()}


def write_csv(settings: EvalSettings) -> None:
    """Writes predictions with one number or string per example to `settings.csv`, a new file."""
    check_new(settings.csv)
    columns = {name: [each.decode(errors='replace') if isinstance(each, bytes) else each for each in value]
               for name, value in predict(settings).items() if isinstance(value, np.ndarray) and value.ndim == 1}
    write_rows(settings.csv, [columns, *zip(*columns.values())])
