"""Builds the towers of a model function, on images with classes or on batches of a user's data set.

    def model(features, labels, mode):  # mode is 'train', 'eval' or 'infer'
        ...
        return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op, eval_metric_ops)
"""
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import MOVING_STATISTICS
from cifar10.base.registry import NETWORKS
from cifar10.model import classifier
from cifar10.own import refusals
from cifar10.own.batches import EVAL, INFER, TRAIN, Batches, examples_of
from cifar10.own.gradient_marks import marking
from cifar10.own.isolated_call import Call, Tower, with_feeds
from cifar10.own.refusals import BrokenRule
from cifar10.own.towers import OwnTowers
from cifar10.own.tracing import trace
from cifar10.parallel.update import move

_LEAST = 1e-7  # the smallest probability of a class, so that its logarithm is finite


class Built(NamedTuple):
    """A model in mode 'eval' or 'infer'.

    Attributes:
      start: the operation that resets the metrics, before the first batch.
      each: the fetches for each batch: `examples`, int64 scalar; in evaluation also `loss`, a float scalar, and
        `update`, an operation; in prediction `predictions`, tensors by their names.
      metrics: scalars by their names, to fetch after the last batch.
      feeds: the values to feed to placeholders.
    """
    start: tf.Operation
    each: Mapping[str, Any]
    metrics: Mapping[str, tf.Tensor]
    feeds: Mapping[tf.Tensor, Any]


class ModelTowers(OwnTowers):
    """Builds the towers of a model function.

    Args:
      recipe, settings, num_classes, seed: as `OwnTowers` takes them.
      batches: the `Batches` of a training; in evaluation, whether the data set is a user's batches (False: images).
    """

    def __init__(self, recipe: Any, settings: Any, num_classes: int, seed: int, batches: Any):
        super().__init__(recipe, settings, num_classes, seed, refusals.MODEL)
        self._model = NETWORKS.load(settings.network).model
        self._batches = batches

    def placeholders(self, batch_size: int, side: int | None) -> Any:
        return self._batches.placeholders() if self._batches else super().placeholders(batch_size, side)

    def _rows(self, side):
        return self._batches.rows if self._batches else super()._rows(side)

    def _trace(self, batch, dtype, learnt):
        del learnt
        return trace(self._tower, batch, True, self._seed, None if dtype == tf.float32 else dtype, self._entry)

    def _tower(self, batch):
        shown = {}
        if not self._batches:
            with tf.name_scope('augmentation'):
                batch = self._recipe.augmented(*batch)
            shown = dict(zip(('images', 'labels'), batch))
        features, labels = _divided(batch)
        with marking():
            spec, feeds = self._called(features, labels, TRAIN)
        scalars, train_op = step_of(spec.loss, spec.train_op)
        logits = _logits(spec.predictions) if shown else None
        if logits is not None and logits.shape.rank == 2 and logits.shape[:1].is_compatible_with(labels.shape[:1]):
            scalars['accuracy'] = tf.reduce_mean(tf.cast(classifier.correct(logits, labels), tf.float32))
        return Tower(scalars, train_op, shown, feeds, refusals.notes_of_spec(spec))

    def _called(self, features, labels, mode):
        """Calls the model function; returns (the EstimatorSpec, the values to feed)."""
        spec, feeds = with_feeds(self._model(features, labels, mode))
        refusals.check_spec(spec)
        return spec, feeds

    def _notes_of_evaluation(self, training, side):
        return ([], []) if self._batches else super()._notes_of_evaluation(training, side)

    def has_classes(self, size: int) -> bool:
        """Returns whether the model predicts classes, given the height and width of the images."""
        with tf.Graph().as_default():
            images = tf.placeholder(tf.float32, [2, size, size, 3])
        return 'logits' in self._evaluation(images).outputs

    def _trace_evaluation(self, images):
        """Traces the model in mode 'infer', or, if that fails, in mode 'eval' with dummy labels."""
        def traced(mode):
            return trace(functools.partial(self._predicting, mode), images, False, self._seed, entry=self._entry)
        try:
            return traced(INFER)
        except BrokenRule:
            raise
        except Exception as error:
            try:
                return traced(EVAL)
            except Exception:
                raise error from None

    def _predicting(self, mode, images):
        """Calls the model for its logits; returns the Tower."""
        labels = tf.zeros([images.shape[0]], tf.int32) if mode == EVAL else None
        spec, feeds = self._called(images, labels, mode)
        logits = _logits(spec.predictions)
        if logits is None:
            return Tower({}, feeds=feeds, notes=(refusals.NO_CLASSES,))
        logits = refusals.checked_logits(images, self._num_classes, logits)
        return Tower({}, shown=dict(logits=tf.cast(logits, tf.float32)), feeds=feeds)

    def batches(self, source: Any, batch_size: int, mode: str) -> Batches:
        """Returns the batches of a data set, as `Batches` takes it, in mode 'eval' or 'infer'."""
        return Batches(source, batch_size, self._seed, mode)

    def built(self, batch: Any, mode: str) -> Built:
        """Adds the model in mode 'eval' or 'infer' to the current graph, on the device of the caller.

        Raises:
          UsageError: the model fails, or returns no valid result.
        """
        features, labels = _divided(batch)
        with tf.device('/cpu:0'):
            each, metrics = dict[str, Any](examples=examples_of(batch)), {}
        call = Call((), False, None, graph=tf.get_default_graph())

        def called(_):
            spec, feeds = self._called(features, labels if mode == EVAL else None, mode)
            if mode == INFER:
                each.update(predictions=refusals.checked_predictions(spec.predictions))
            else:
                refusals.check_loss(spec.loss)
                pairs = spec.eval_metric_ops or {}
                each.update(loss=tf.reshape(spec.loss, []), update=tf.group([update for _, update in pairs.values()]))
                metrics.update({name: value for name, (value, _) in pairs.items()})
            return Tower({}, feeds=feeds)
        with self._usage_errors():
            call.run(called)
        of_metrics = [variable for variable in tf.local_variables() if variable.handle.op.name in call.variables]
        feeds = {key: value for key, tensor in call.feeds.items() if (value := tf.get_static_value(tensor)) is not None}
        return Built(tf.variables_initializer(of_metrics), each, metrics, feeds)


def step_of(loss: Any, train_op: Any) -> tuple[dict[str, tf.Tensor], tf.Operation]:
    """Returns (the scalars, the train_op) of a model function or a step function; raises a BrokenRule."""
    refusals.check_step(loss, train_op)
    train_op = train_op if isinstance(train_op, tf.Operation) else train_op.op
    if moved := move(tf.get_collection(MOVING_STATISTICS)):  # as of `cifar10.model.batch_normalisation`
        train_op = tf.group(train_op, *moved)
    return dict(total_loss=tf.cast(tf.reshape(loss, []) if loss.shape.rank != 0 else loss, tf.float32)), train_op


def _divided(batch):
    """Splits a batch into features and labels; labels are None if there are none."""
    return batch if isinstance(batch, tuple) and len(batch) == 2 else (batch, None)


def _logits(predictions):
    """Returns the logits of predictions, or None."""
    found = predictions if isinstance(predictions, dict) else {}
    if isinstance(found.get('logits'), tf.Tensor):
        return found['logits']
    probabilities = found.get('probabilities')
    return None if probabilities is None else tf.log(tf.maximum(probabilities, _LEAST))
