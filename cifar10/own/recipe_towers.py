"""Builds towers from a recipe with user code: a network, an augmentation, a loss.

    def network(images, num_classes, training):  # plain graph code
        ...
        return logits

    def augmentation(images, labels, num_classes):  # float32 [n, height, width, 3] from 0 to 255, int32 [n]
        ...
        return images, labels  # labels may be fractions of classes, float32 [n, num_classes]

    def loss(logits, labels):  # float32 [n, classes], int32 [n] or the labels of an augmentation
        ...
        return losses  # of each example, [n]
"""
import functools
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError
from cifar10.base.graphs import with_inputs
from cifar10.base.registry import AUGMENTATIONS, NETWORKS
from cifar10.model import NUM_CLASSES, Network, network_draws
from cifar10.model.untrained_variables import freezing
from cifar10.own import code, mixed_precision, refusals
from cifar10.own.isolated_call import Tower, with_feeds
from cifar10.own.towers import OwnTowers
from cifar10.own.tracing import trace

_ARGUMENTS = 'features, labels, mode'
_FEEDS = 'feeds'  # the graph collection of (placeholder, value to feed)


def network(name: str) -> Network:
    """Imports the network or model function 'FILE.py:FUNCTION'."""
    if {'features', 'labels'} <= set(code.parameters('network', name)):
        return Network(None, model=code.function('network', name, _ARGUMENTS, each_time=True))
    function = code.function('network', name, 'images, num_classes, training', each_time=True)

    def inference(images, training=False, num_classes=NUM_CLASSES):
        with code.usage_errors('network', name, f'; {refusals.fed(images)}: build the network for them, or change '
                                                '--image_size, and use -1 or images.shape[0] as the number of '
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
        raise UsageError(f'--augmentation={name} names several functions; give one that calls the others')
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


class RecipeTowers(OwnTowers):
    """Builds the towers of a recipe with a user's network, augmentation or loss.

    Args:
      recipe: its methods call the user's functions as ordinary code.
      settings, num_classes, seed: as `OwnTowers` takes them.
    """

    def __init__(self, recipe: Any, settings: Any, num_classes: int, seed: int):
        super().__init__(recipe, settings, num_classes, seed, refusals.NETWORK)
        self._narrows: bool | None = None  # whether a float32 network computes in a narrower type; None: not tried yet

    def _trace(self, batch, dtype, learnt):
        with freezing(self._settings.freeze):  # the trace also looks for frozen statistics
            return self._trace_in(dtype, batch, functools.partial(self._tower, **learnt))

    def _trace_in(self, dtype, batch, make):
        """Traces a tower that computes in a type, even if its code is written in float32."""
        if dtype == tf.float32:
            return trace(make, batch, True, self._seed)
        if not self._narrows:
            try:
                traced = trace(functools.partial(make, dtype=dtype), batch, True, self._seed)
                self._narrows = not mixed_precision.computes_in(traced.operations(), dtype)
            except Exception:  # if float32 fails too, its error is reported
                self._narrows = True
            if not self._narrows:
                return traced
        return trace(make, batch, True, self._seed, narrow_to=dtype)

    def _tower(self, batch, dtype=tf.float32, **learnt):
        """Calls augmentation, network and loss on a batch; returns the Tower."""
        with tf.name_scope('augmentation'):
            images, labels = self._recipe.augmented(*batch)
        scalars = self._recipe.add_loss(images, labels, dtype, **learnt)
        activations = {each.op.name: each for each in tf.get_collection(tf.GraphKeys.ACTIVATIONS)
                       if isinstance(each, tf.Tensor) and each.dtype.is_floating and each.shape.rank != 0}
        shown = dict(images=images, labels=labels, activations=activations)
        return Tower(scalars, shown=shown, feeds=dict(tf.get_collection(_FEEDS)))

    def _trace_evaluation(self, images):
        with freezing(self._settings.freeze):
            return trace(self._called, images, False, self._seed)

    def _called(self, images):
        logits = self._recipe.called(images, False)
        return Tower({}, shown=dict(logits=logits), feeds=dict(tf.get_collection(_FEEDS)))

    def _notes_of_evaluation(self, training, side):
        return super()._notes_of_evaluation(training, side) if NETWORKS.is_own(self._settings.network) else ([], [])
