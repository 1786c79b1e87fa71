"""Builds towers from user code: the common part of networks and model functions.

The functions are called once for each kind of batch, in a separate graph. Each tower gets a copy of the result. Code
that would silently train wrongly is refused, or reported in a note.
"""
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import Line
from cifar10.base.errors import UsageError
from cifar10.base.registry import AUGMENTATIONS, LOSSES, NETWORKS
from cifar10.model import network_draws
from cifar10.own import code, refusals, rehearsal
from cifar10.own.computed import copied_tower
from cifar10.own.isolated_call import Tower, tensors_of
from cifar10.own.made_up import rehearse
from cifar10.own.tracing import Traced
from cifar10.parallel.update import Computed

_MADE_UP = 32  # images for rehearsals


class OwnTowers:
    """Builds the towers of a recipe with user code. Each kind of tower is traced once.

    A derived class calls the code: `_tower`, `_trace` and `_trace_evaluation`.

    Args:
      recipe: a `model.recipe.Recipe`.
      settings: its `RecipeSettings`.
      num_classes: classes of the data set.
      seed: the seed of the run.
      entry: the entry point, as `trace` takes it.
    """

    def __init__(self, recipe: Any, settings: Any, num_classes: int, seed: int, entry: str):
        self._recipe = recipe
        self._settings = settings
        self._num_classes = num_classes
        self._seed = seed
        own = [('network', settings.network, NETWORKS), ('loss', settings.loss, LOSSES),
               ('augmentation', settings.augmentation, AUGMENTATIONS)]
        self._own = [(flag, names.divided(name)[1]) for flag, name, names in own if names.is_own(name)]
        self._entry = entry
        self._traced: dict[tuple, Traced] = {}

    def _tower(self, batch: Any) -> Tower:
        """Calls the code for training in float32."""
        raise NotImplementedError

    def _trace(self, batch: Any, dtype: tf.DType, learnt: Mapping[str, Any]) -> Traced:
        """Traces a tower for training."""
        raise NotImplementedError

    def _trace_evaluation(self, images: tf.Tensor) -> Traced:
        """Traces the network in evaluation; its outputs have `logits`, if it predicts classes."""
        raise NotImplementedError

    def train(self, batch: Any, dtype: tf.DType, scale: tf.Tensor | None = None, shared: dict | None = None,
              **learnt: Any) -> tuple[Computed, Mapping]:
        """Adds a tower to the current graph, within `network_draws.at_position`.

        Args:
          batch: the tower's batch, from the `Source` of the run.
          dtype: the type that the network computes in.
          scale, shared: as `computed.copied_tower` takes them.
          learnt: as `Recipe.inference` takes it.

        Returns:
          (the Computed, the outputs of the copy).
        """
        with self._usage_errors():
            return copied_tower(self._training(batch, dtype, learnt), batch, scale, shared)

    def _training(self, batch, dtype, learnt):
        key = _described(batch), dtype
        if key not in self._traced:
            self._traced[key] = self._trace(batch, dtype, learnt)
        return self._traced[key]

    def placeholders(self, batch_size: int, side: int | None) -> Any:
        """Returns a batch of placeholders in the current graph, with square images."""
        return tf.placeholder(tf.float32, [batch_size, side, side, 3]), tf.placeholder(tf.int32, [batch_size])

    def evaluate(self, images: tf.Tensor) -> tf.Tensor:
        """Adds a copy of the network in evaluation to the current graph; returns its logits."""
        with tf.device('/cpu:0'):
            tf.train.get_or_create_global_step()  # a network may use it
        _, outputs = copied_tower(self._evaluation(images), images)
        if 'logits' not in outputs:
            raise UsageError(f'--network={self._settings.network}: {refusals.NO_CLASSES}; return one of the two')
        return outputs['logits']

    def _evaluation(self, images):
        key = _described(images)
        if key not in self._traced:
            with self._usage_errors():
                self._traced[key] = self._trace_evaluation(images)
        return self._traced[key]

    def check(self, batch_size: int, sizes: list, dtype: tf.DType, in_numbers: bool = True) -> list[Line]:
        """Traces towers for training and for evaluation, and checks the rules; returns notes.

        Args:
          batch_size: examples in a training batch.
          sizes: the heights and widths of images in the course of a run; evaluation uses the last.
          in_numbers: whether to rehearse towers.

        Raises:
          UsageError: the code breaks a rule.
        """
        side = sizes[0] if len(sizes) == 1 else None
        with tf.Graph().as_default(), self._usage_errors():
            with network_draws.at_position(self._seed, tf.zeros([], tf.int64)):
                traced = self._training(self.placeholders(batch_size, side), dtype, {})
                numbers = rehearse(self._tower, self.placeholders(batch_size, sizes[0]), self._seed, self._entry,
                                   self._rows(sizes[0])) if in_numbers else []
                if AUGMENTATIONS.is_own(self._settings.augmentation) and rehearsal.draws(traced):
                    numbers = []  # an augmentation such as mixup mixes the examples of a batch at random
            of_evaluation, by_batch = self._notes_of_evaluation(traced, sizes[-1])
            notes = [*traced.notes, *rehearsal.notes_on_draws(traced)]
        names = ', '.join(f'--{flag}={name}' for flag, name in self._own)
        # A network that normalises by its batch in evaluation also does so in training: one note is enough.
        return [Line('warning', f'{names}: {note}') for note in (*notes, *of_evaluation, *(by_batch or numbers))]

    def _notes_of_evaluation(self, training, side):
        """Returns (notes on the code in evaluation, notes on its logits)."""
        found = self._evaluation(tf.placeholder(tf.float32, [2, side, side, 3]))
        refusals.check_same_variables(training.variables, found.variables)
        return found.notes, rehearsal.compare_evaluation(found, self._seed) if 'logits' in found.outputs else []

    def _rows(self, side):
        """Returns the rows of made-up images and labels for `rehearse`: pixels for an augmentation, and all classes."""
        count = _MADE_UP if AUGMENTATIONS.is_own(self._settings.augmentation) else 0
        brightness = np.linspace(64, 192, count)[:, None, None, None]
        images = brightness + 40 * np.random.default_rng(0).standard_normal([count, side, side, 3])
        return np.clip(images, 0, 255).astype(np.float32), np.arange(self._num_classes, dtype=np.int32)

    def _usage_errors(self) -> AbstractContextManager:
        return code.usage_errors(*self._own[0])


def _described(batch):
    return tuple((name, each.dtype, repr(each.shape)) for name, each in tensors_of(batch).items())
