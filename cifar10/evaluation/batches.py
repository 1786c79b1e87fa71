"""Evaluates a model function that does not predict classes, and predicts with it."""
import collections
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.activity import moved
from cifar10.base.console import say
from cifar10.base.errors import RunError, UsageError
from cifar10.data.datasets import ImageFiles
from cifar10.data.images import eval_batches, loaded
from cifar10.data.pipeline import AHEAD, started
from cifar10.evaluation.classification import check_new, write_rows
from cifar10.evaluation.result import EvalResult
from cifar10.evaluation.trained import Model
from cifar10.model.recipe import Recipe
from cifar10.settings.evaluation import EvalSettings

_EVAL, _INFER = 'eval', 'infer'  # the modes of a model function and of a data function


class BatchEvaluator:
    """Evaluates a model function in mode 'eval', in the current default graph: loss and metrics on a data set.

    Args:
      data: 'FILE.py:FUNCTION', a data set of batches, or images.
      device: name of the device that computes the model.
      batch_size: the maximum of examples in a batch.
      num_examples: the number of images to evaluate; None for all.

    Attributes:
      read: the operation that reads the data; run it once per session.
    """

    def __init__(self, data: str | ImageFiles, recipe: Recipe, device: str, batch_size: int,
                 num_examples: int | None = None):
        self._data = data
        with tf.device('/cpu:0'), tf.name_scope('input'):
            if isinstance(data, str):
                self.read = tf.no_op()
                batch, self._start = _first(recipe.own.batches(data, batch_size, _EVAL))
            else:
                count = num_examples or data.count
                # Batches of equal size, because a model function may need to know the number of images.
                size = max(each for each in range(1, min(batch_size, count) + 1) if count % each == 0)
                memory = loaded(data)
                self.read = memory.read
                iterator, self._start = eval_batches(memory, recipe.augmentation, count, size)
                batch = tuple(tf.ensure_shape(each, [size, *each.shape[1:]]) for each in iterator.get_next())
        with tf.device(device):
            self._built = recipe.own.built(batch, _EVAL)

    def run(self, session: tf.Session, step: int, checkpoint: str | None = None) -> EvalResult:
        """Makes one pass over the batches, as `Evaluator.run` does. Weights each batch by its number of examples."""
        losses, examples = 0.0, 0
        for found in _each(self._start, self._built, session):
            losses += float(found['loss']) * int(found['examples'])
            examples += int(found['examples'])
        if not examples:
            raise RunError(f'--dataset={self._data} has no examples in mode {_EVAL!r}')
        metrics = session.run(self._built.metrics)
        figures = {name: float(value) for name, value in metrics.items() if np.ndim(value) == 0}
        return EvalResult(step, checkpoint, dict(loss=losses / examples, **figures), examples)


def _first(batches):
    """Adds the batches of a data set to the graph; returns (the next batch, the operation that starts at the first)."""
    data, read = batches.load()
    iterator, start = started(data.prefetch(AHEAD), [read])
    return iterator.get_next(), start


def _each(start, built, session) -> Iterator[dict[str, Any]]:
    """Yields the results of each batch, in order."""
    session.run([start, built.start])
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
        with tf.device('/cpu:0'), tf.name_scope('input'):
            batch, start = _first(batches)
        with tf.device(model.devices.tower_devices[0]):
            return start, model.recipe.own.built(batch, _INFER)
    with model.session(build) as opened:
        opened.restore(found)
        start, built = opened.built
        for each in _each(start, built, opened.session):
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
