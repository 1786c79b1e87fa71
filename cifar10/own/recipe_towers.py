"""Builds towers from a recipe with user code: a network or a whole model, an augmentation, a loss.

    def network(images, num_classes, training):  # plain graph code
        ...
        return logits

    def model_fn(features, labels, mode):  # the images, their classes, and 'train', 'eval' or 'infer'
        ...
        return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op)

    def augmentation(images, labels, num_classes):  # float32 [n, height, width, 3] from 0 to 255, int32 [n]
        ...
        return images, labels  # labels may be fractions of classes, float32 [n, num_classes]

    def loss(logits, labels):  # float32 [n, classes], int32 [n] or the labels of an augmentation
        ...
        return losses  # of each example, [n]

The functions are called once for each kind of batch, in a separate graph. Each tower gets a copy of the result. Code
that would silently train wrongly is refused, or reported in a note.
"""
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import Line
from cifar10.base.errors import UsageError, reason
from cifar10.base.graphs import MOVING_STATISTICS, with_inputs
from cifar10.base.registry import AUGMENTATIONS, LOSSES, NETWORKS
from cifar10.model import NUM_CLASSES, Network, classifier, network_draws
from cifar10.model.untrained_variables import freezing
from cifar10.own import code, mixed_precision, refusals, rehearsal
from cifar10.own.batches import EVAL, INFER, TRAIN
from cifar10.own.computed import copied_tower
from cifar10.own.gradient_marks import marking
from cifar10.own.isolated_call import Tower, with_feeds
from cifar10.own.refusals import BrokenRule
from cifar10.own.tracing import Traced, trace
from cifar10.parallel.update import Computed, move

_ARGUMENTS = 'features, labels, mode'
_LEAST = 1e-7  # the smallest probability of a class, so that its logarithm is finite
_FEEDS = 'feeds'  # the graph collection of (placeholder, value to feed)
_PIXELS = 2 ** 14  # in a tower's batch of a rehearsal at most, so that it takes a second for a small network


def network(name: str) -> Network:
    """Imports the network or model function 'FILE.py:FUNCTION'."""
    if {'features', 'labels'} <= set(code.parameters('network', name)):
        return Network(None, model=code.function('network', name, _ARGUMENTS, each_time=True))
    function = code.function('network', name, 'images, num_classes, training', each_time=True)

    def inference(images, training=False, num_classes=NUM_CLASSES):
        with code.usage_errors('network', name, f'; {refusals.fed(images)}: build it for this size, or change '
                                                '--image_size, and write -1 or images.shape[0] for the number of '
                                                'images'):
            logits, feeds = with_feeds(function(images, num_classes, training))
            logits = refusals.checked_logits(images, num_classes, logits)
            for feed in feeds.items():
                tf.add_to_collection(_FEEDS, feed)
            return tf.cast(logits, tf.float32)
    return Network(inference)


def augmentation(name: str) -> Callable:
    """Imports the function of 'NAME,FILE.py:FUNCTION'; returns a factory for an Augmentation that ends with it."""
    built_in, own = AUGMENTATIONS.divided(name)
    if own.count('.py:') > 1:
        raise UsageError(f'--augmentation={name} names several functions; give one, and call the others in it')
    function = code.function('augmentation', own, 'images, labels, num_classes', each_time=True)

    def changed(images, labels, num_classes):
        place = network_draws.current_place()
        with code.usage_errors('augmentation', own), network_draws.at_position(
                *place, first_draw=network_draws.OF_AUGMENTATIONS):
            result = function(images, labels, num_classes)
            refusals.check_augmented(images, labels, num_classes, result)
            images, classes = result
        return tf.cast(images, tf.float32), tf.cast(classes, tf.float32 if classes.shape.rank == 2 else tf.int32)
    return functools.partial(AUGMENTATIONS.load(built_in), then=changed)


def loss(name: str) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Imports 'FILE.py:FUNCTION'; returns the function with its result cast to float32."""
    function = code.function('loss', name, 'logits, labels', each_time=True)

    def losses(logits, labels):
        with code.usage_errors('loss', name):
            found = function(logits, labels)
            refusals.check_example_losses(found, labels)
        # Functions of tf.losses add their result to the collection.
        collected, needed = tf.get_collection_ref(tf.GraphKeys.LOSSES), with_inputs([found.op])
        collected[:] = [entry for entry in collected if entry.op not in needed]
        return tf.cast(found, tf.float32)
    return losses


class RecipeTowers:
    """Builds the towers of a recipe with user code. Each kind of tower is traced once.

    Args:
      recipe: a `model.recipe.Recipe`; its methods call the user's functions as ordinary code.
      settings: its `RecipeSettings`.
      num_classes: classes of the data set.
      seed: the seed of the run.
    """

    def __init__(self, recipe: Any, settings: Any, num_classes: int, seed: int):
        self._recipe = recipe
        self._settings = settings
        self._num_classes = num_classes
        self._seed = seed
        self._model = NETWORKS.load(settings.network).model
        self._traced: dict[tuple, Traced] = {}
        self._narrows: bool | None = None  # whether a float32 network computes in a narrower type; None: not tried yet
        own = [('network', settings.network, NETWORKS), ('loss', settings.loss, LOSSES),
               ('augmentation', settings.augmentation, AUGMENTATIONS)]
        self._own = [(flag, names.divided(name)[1]) for flag, name, names in own if names.is_own(name)]

    def train(self, batch: tuple[tf.Tensor, tf.Tensor], dtype: tf.DType, scale: tf.Tensor | None = None,
              shared: dict | None = None, **learnt: Any) -> tuple[Computed, Mapping]:
        """Adds a tower to the current graph, within `network_draws.at_position`.

        Args:
          batch: images and labels of the tower, as `Recipe.augmented` takes them.
          dtype: the type that the network computes in.
          scale, shared: as `computed.copied_tower` takes them.
          learnt: as `Recipe.inference` takes it.

        Returns:
          (the Computed, the outputs of the copy).
        """
        inputs = dict(zip(('images', 'labels'), batch))
        traced = self._training(_described(inputs), dtype, self._seed, learnt)
        with self._usage_errors():
            computed, copied = copied_tower(traced, inputs, scale, shared)
        return computed, copied.outputs

    def placeholders(self, batch_size: int, side: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns a batch of placeholders in the current graph, with square images."""
        return tf.placeholder(tf.float32, [batch_size, side, side, 3]), tf.placeholder(tf.int32, [batch_size])

    def evaluate(self, images: tf.Tensor) -> tf.Tensor:
        """Adds a copy of the network in evaluation to the current graph; returns its logits."""
        logits = self._copied(dict(images=images)).get('logits')
        if logits is None:
            with self._usage_errors():
                refusals.check_predictions(INFER, None)
        return logits

    def loss(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Adds a copy of a model in mode 'eval' to the current graph; returns its loss, the mean over the batch."""
        return self._copied(dict(images=images, labels=labels))['scalars']['loss']

    def _copied(self, inputs):
        """Adds a copy of the network in evaluation; returns its outputs."""
        with tf.device('/cpu:0'):
            tf.train.get_or_create_global_step()  # a network may use it
        return copied_tower(self._evaluation(_described(inputs), self._seed), inputs)[1].outputs

    def has_classes(self, size: int) -> bool:
        """Returns whether the network predicts classes, given the height and width of the images."""
        shape = tf.TensorShape([2, size, size, 3])
        return 'logits' in self._evaluation(dict(images=(tf.float32, shape)), self._seed).outputs

    def _training(self, inputs, dtype, seed, learnt, is_kept=True):
        key = 'training', repr(inputs), dtype, seed
        if key not in self._traced or not is_kept:
            make = self._model_tower if self._model else functools.partial(self._network_tower, learnt)
            entry = refusals.MODEL if self._model else refusals.NETWORK
            with self._usage_errors(), freezing(self._settings.freeze):
                self._traced[key] = self._in_type(make, inputs, dtype, seed, entry)
        return self._traced[key]

    def _in_type(self, make, inputs, dtype, seed, entry):
        """Returns the Traced of a tower that computes in a type, even if its code is written in float32."""
        if dtype == tf.float32:
            return trace(functools.partial(make, dtype), inputs, True, seed, entry=entry)
        if not self._narrows:
            try:
                traced = trace(functools.partial(make, dtype), inputs, True, seed, entry=entry)
                self._narrows = not mixed_precision.computes_in(traced.operations(), dtype)
            except Exception:  # if float32 fails too, its error is reported
                self._narrows = True
            if not self._narrows:
                return traced
        return trace(functools.partial(make, tf.float32), inputs, True, seed, narrow_to=dtype, entry=entry)

    def _network_tower(self, learnt, dtype, images, labels):
        """Calls augmentation, network and loss on a batch; returns the Tower."""
        with tf.name_scope('augmentation'):
            images, labels = self._recipe.augmented(images, labels)
        network: set[tf.Operation] = set()

        def called(images, training):
            graph = tf.get_default_graph()
            before = len(graph.get_operations())
            logits = self._recipe.called(images, training, **learnt)
            network.update(each.name for each in graph.get_operations()[before:])
            return logits
        scalars = classifier.add_loss(called, images, labels, dtype, self._recipe.losses, self._recipe.loss_name)
        activations = {each.op.name: each for each in tf.get_collection(tf.GraphKeys.ACTIVATIONS)
                       if isinstance(each, tf.Tensor) and each.dtype.is_floating and each.shape.rank != 0}
        shown = dict(images=images, labels=labels, activations=activations)
        return Tower(scalars, shown=shown, feeds=dict(tf.get_collection(_FEEDS)), network=network)

    def _model_tower(self, dtype, images, labels):
        """Calls augmentation and model function on a batch; returns the Tower."""
        with tf.name_scope('augmentation'):
            images, labels = self._recipe.augmented(images, labels)
        with marking():
            spec, feeds = with_feeds(self._model(tf.cast(images, dtype), labels, TRAIN))
        scalars, train_op = step_of(getattr(spec, 'loss', None), getattr(spec, 'train_op', None))
        logits = self._logits(getattr(spec, 'predictions', None))
        if logits is not None and logits.shape.rank == 2 and logits.shape[:1].is_compatible_with(labels.shape[:1]):
            scalars['accuracy'] = tf.reduce_mean(tf.cast(classifier.correct(logits, labels), tf.float32))
        return Tower(scalars, train_op, dict(images=images, labels=labels), feeds,
                     refusals.notes_of_spec(spec))

    def _evaluation(self, inputs, seed):
        key = 'evaluation', repr(inputs), seed
        if key not in self._traced:
            with self._usage_errors(), freezing(self._settings.freeze):
                self._traced[key] = self._inferring(inputs, seed) if self._model else trace(
                    self._called, inputs, False, seed)
        return self._traced[key]

    def _called(self, images):
        logits = self._recipe.called(images, False)
        return Tower({}, shown=dict(logits=logits), feeds=dict(tf.get_collection(_FEEDS)))

    def _inferring(self, inputs, seed):
        """Returns the Traced of a model in evaluation.

        With labels, the result has the loss of mode 'eval'; otherwise logits, if the model predicts classes. Many
        functions do not support mode 'infer': if it fails, mode 'eval' is tried with dummy labels.
        """
        def called(mode, images, labels=None):
            if mode == EVAL and labels is None:
                labels = tf.zeros([images.shape[0]], tf.int32)
            spec, feeds = with_feeds(self._model(images, labels, mode))
            if 'labels' in inputs:
                refusals.check_loss(getattr(spec, 'loss', None))
                return Tower(dict(loss=tf.cast(tf.reshape(spec.loss, []), tf.float32)), feeds=feeds)
            predictions = getattr(spec, 'predictions', None)
            logits = self._logits(predictions)
            if logits is None:
                refusals.check_predictions(mode, predictions)
                return Tower({}, feeds=feeds)
            logits = refusals.checked_logits(images, self._num_classes, logits)
            return Tower({}, shown=dict(logits=tf.cast(logits, tf.float32)), feeds=feeds)
        if 'labels' in inputs:
            return trace(functools.partial(called, EVAL), inputs, False, seed, entry=refusals.MODEL)
        try:
            return trace(functools.partial(called, INFER), inputs, False, seed, entry=refusals.MODEL)
        except BrokenRule:
            raise
        except Exception as error:
            try:
                return trace(functools.partial(called, EVAL), inputs, False, seed, entry=refusals.MODEL)
            except BrokenRule as rule:
                raise BrokenRule(f"in mode 'infer' it fails ({reason(error)}), and {rule}") from error
            except Exception:
                raise error from None

    def _logits(self, predictions):
        """Returns the logits of predictions, or None."""
        found = predictions if isinstance(predictions, dict) else {}
        if isinstance(found.get('logits'), tf.Tensor):
            return found['logits']
        probabilities = found.get('probabilities')
        return None if probabilities is None else tf.log(tf.maximum(probabilities, _LEAST))

    def _usage_errors(self):
        return code.usage_errors(*self._own[0])

    def check(self, batch_size: int, sizes: list, dtype: tf.DType, in_numbers: bool = True) -> list[Line]:
        """Traces towers for training and for evaluation, and checks the rules; returns notes.

        Args:
          batch_size: images in a training batch.
          sizes: their heights and widths in the course of a run; evaluation uses the last.
          in_numbers: whether to rehearse towers.

        Raises:
          UsageError: the code breaks a rule.
        """
        side = sizes[0] if len(sizes) == 1 else None

        def training(count, seed):
            inputs = dict(images=(tf.float32, tf.TensorShape([count, side, side, 3])),
                          labels=(tf.int32, tf.TensorShape([count])))
            with tf.Graph().as_default(), network_draws.at_position(self._seed, tf.zeros([], tf.int64)):
                return self._training(inputs, dtype, self._seed if seed is None else seed, {}, seed is not None)

        def evaluation(count, seed):
            shape = tf.TensorShape([count, sizes[-1], sizes[-1], 3])
            return self._evaluation(dict(images=(tf.float32, shape)), seed)
        few = min(batch_size, max(2, _PIXELS // sizes[0] ** 2) if dtype == tf.float32 else 2)
        subject = rehearsal.Subject(training, functools.partial(self._made_up, sizes[0]), few, self._seed,
                                    dtype != tf.float32)
        traced = training(batch_size, self._seed)
        notes = [*traced.notes, *rehearsal.notes_on_draws(traced)]
        with self._usage_errors():
            numbers, by_batch = rehearsal.compare(subject) if in_numbers else [], []
            if NETWORKS.is_own(self._settings.network):
                found = evaluation(2, self._seed)
                self._refuse_other_variables(traced, found)
                if 'logits' in found.outputs:
                    by_batch = rehearsal.compare_evaluation(subject._replace(trace=evaluation))
                else:
                    notes.append("its predictions have neither 'logits' nor 'probabilities', so evaluations report its "
                                 "loss in mode 'eval'")
            # A network that normalises by its batch in evaluation also does so in training: one note is enough.
            notes += by_batch or numbers
        names = ', '.join(f'--{flag}={name}' for flag, name in self._own)
        return [Line('warning', f'{names}: {note}') for note in notes]

    def _refuse_other_variables(self, training, evaluation):
        """Raises a BrokenRule if evaluation needs a variable that training does not make."""
        variables = {each.name: each for each in training.variables}
        for each in evaluation.variables:
            before = variables.get(each.name)
            if before is None or (each.shape, each.dtype) != (before.shape, before.dtype):
                made = f'{before.shape.as_list()}, {before.dtype.name}' if before else 'not made'
                raise BrokenRule(f'the variable {each.name} is {each.shape.as_list()}, {each.dtype.name} in '
                                 f'evaluation, but {made} in training; make it the same in both')

    def _made_up(self, side, random, count, inputs):
        """Returns made-up images and their classes: the second half is brighter than the first."""
        brightness = np.sort(random.standard_normal(count, np.float32))
        images = random.standard_normal([count, side, side, 3], np.float32) + brightness[:, None, None, None]
        if self._settings.augmentation and AUGMENTATIONS.is_own(self._settings.augmentation):
            images = np.clip(127 + 40 * images, 0, 255)
        # Halves differ in their classes and in the frequency of each class.
        spread = np.clip(1 / (1 + np.exp(-brightness)) + 0.3 * random.standard_normal(count), 0, 0.999)
        return dict(images=images.astype(np.float32), labels=(spread * self._num_classes).astype(np.int32))


def _described(inputs):
    return {name: (each.dtype, each.shape) for name, each in inputs.items()}


def step_of(loss: Any, train_op: Any) -> tuple[dict[str, tf.Tensor], tf.Operation]:
    """Returns (the scalars, the train_op) of a model function or a step function; raises a BrokenRule."""
    refusals.check_step(loss, train_op)
    train_op = train_op if isinstance(train_op, tf.Operation) else train_op.op
    if moved := move(tf.get_collection(MOVING_STATISTICS)):  # as of `cifar10.model.batch_normalisation`
        train_op = tf.group(train_op, *moved)
    return dict(total_loss=tf.cast(tf.reshape(loss, []) if loss.shape.rank != 0 else loss, tf.float32)), train_op
