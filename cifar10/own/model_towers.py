"""Builds a model function on batches of a user's data set: the towers, and the model in evaluation.

    def model(features, labels, mode):  # mode is 'train', 'eval' or 'infer'
        ...
        return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op, eval_metric_ops)
"""
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.console import Line
from cifar10.base.registry import NETWORKS
from cifar10.data.pipeline import AHEAD, started
from cifar10.model import network_draws
from cifar10.own import code, refusals, rehearsal
from cifar10.own.batches import EVAL, TRAIN, Batches, examples_of
from cifar10.own.computed import copied_tower
from cifar10.own.gradient_marks import marking
from cifar10.own.isolated_call import Call, Tower, with_feeds
from cifar10.own.recipe_towers import step_of
from cifar10.own.script import rehearsed, tensors_of
from cifar10.own.tracing import Traced, trace
from cifar10.parallel.update import Computed


class Built(NamedTuple):
    """A model in evaluation or prediction, with batches as its inputs.

    Attributes:
      start: the operation that rewinds the batches and resets the metrics.
      each: the fetches for each batch: `examples`, int64 scalar; in evaluation also `loss`, a float scalar, and
        `update`, an operation; in prediction `predictions`, tensors by their names.
      metrics: scalars by their names, to fetch after the last batch.
      feeds: the values to feed to placeholders.
    """
    start: tf.Operation
    each: Mapping[str, Any]
    metrics: Mapping[str, tf.Tensor]
    feeds: Mapping[tf.Tensor, Any]


class ModelTowers:
    """Builds the towers of a model function, which is traced once.

    Args:
      settings: a `RecipeSettings`.
      seed: the seed of the run.
      batches: the `Batches` of the training; not used in evaluation.
    """

    def __init__(self, settings: Any, seed: int, batches: Any):
        self._name = settings.network
        self._model = NETWORKS.load(settings.network).model
        self._seed = seed
        self._batches = batches
        self._traced: dict[tuple, Traced] = {}

    def train(self, batch: Any, dtype: tf.DType, scale: tf.Tensor | None = None,
              shared: dict | None = None) -> tuple[Computed, Mapping]:
        """Adds a tower to the current graph, as `RecipeTowers.train` does."""
        traced = self._training(batch, dtype)
        with self._usage_errors():
            computed, copied = copied_tower(traced, tensors_of(batch), scale, shared)
        return computed, copied.outputs

    def _training(self, batch, dtype):
        types = {name: (each.dtype, each.shape) for name, each in tensors_of(batch).items()}
        key = repr(types), dtype
        if key not in self._traced:
            with self._usage_errors():
                self._traced[key] = trace(
                    lambda *tensors: self._called(tf.nest.pack_sequence_as(batch, tensors, expand_composites=True)),
                    types, True, self._seed, None if dtype == tf.float32 else dtype, refusals.MODEL)
        return self._traced[key]

    def _called(self, batch, *tensors):
        """Calls the model function on tensors in the structure of a batch; returns the Tower."""
        del tensors
        with marking():
            spec, feeds = with_feeds(self._model(*_divided(batch), TRAIN))
        scalars, train_op = step_of(getattr(spec, 'loss', None), getattr(spec, 'train_op', None))
        return Tower(scalars, train_op, {}, feeds, refusals.notes_of_spec(spec))

    def placeholders(self, batch_size: int, side: int) -> Any:
        """Returns a batch of placeholders in the current graph."""
        del batch_size, side
        return self._batches.placeholders()

    def check(self, batch_size: int, sizes: list, dtype: tf.DType, in_numbers: bool = True) -> list[Line]:
        """Traces a tower and checks the rules, as `RecipeTowers.check` does; returns notes."""
        del batch_size, sizes
        with tf.Graph().as_default(), network_draws.at_position(self._seed, tf.zeros([], tf.int64)), \
                self._usage_errors():
            batch = self._batches.placeholders()
            traced = self._training(batch, dtype)
            notes = [*traced.notes, *rehearsal.notes_on_draws(traced)]
            if in_numbers:
                notes += rehearsed(self._called, batch, self._seed, refusals.MODEL, self._batches.rows)
        return [Line('warning', f'--network={self._name}: {note}') for note in notes]

    def batches(self, source: Any, batch_size: int, mode: str) -> Batches:
        """Returns the batches of a data set, as `Batches` takes it, in mode 'eval' or 'infer'."""
        return Batches(source, batch_size, self._seed, mode)

    def built(self, batches: Batches, mode: str) -> Built:
        """Adds the model in mode 'eval' or 'infer' to the current graph, on the device of the caller.

        Raises:
          UsageError: the model fails, or returns no valid result.
        """
        with tf.device('/cpu:0'):
            data, read = batches.load()
            iterator, start = started(data.prefetch(AHEAD), [read])
            batch = iterator.get_next()
            each, metrics = dict(examples=examples_of(batch)), {}
        call = Call({}, False, None, graph=tf.get_default_graph())

        def called():
            features, labels = _divided(batch)
            spec, feeds = with_feeds(self._model(features, labels if mode == EVAL else None, mode))
            spec = spec.as_estimator_spec() if hasattr(spec, 'as_estimator_spec') else spec
            if mode != EVAL:
                each.update(predictions=refusals.checked_predictions(getattr(spec, 'predictions', None)))
                return Tower({}, feeds=feeds)
            refusals.check_loss(getattr(spec, 'loss', None))
            pairs = getattr(spec, 'eval_metric_ops', None) or {}
            each.update(loss=tf.reshape(spec.loss, []), update=tf.group([update for _, update in pairs.values()]))
            metrics.update({name: value for name, (value, _) in pairs.items()})
            return Tower({}, feeds=feeds)
        with self._usage_errors():
            call.run(called)
        feeds = {key: value for key, tensor in call.feeds.items() if (value := tf.get_static_value(tensor)) is not None}
        return Built(tf.group(start, tf.local_variables_initializer()), each, metrics, feeds)

    def _usage_errors(self):
        return code.usage_errors('network', self._name)


def _divided(batch):
    """Splits a batch into features and labels; labels are None if there are none."""
    return batch if isinstance(batch, tuple) and len(batch) == 2 else (batch, None)
