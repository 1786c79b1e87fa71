"""The recipe of a run: network, augmentation, optimizer and learning rates, for training and for evaluation."""
import contextlib
import functools
import pkgutil
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import Line
from cifar10.base.errors import UsageError
from cifar10.base.graphs import seeded_graph
from cifar10.base.registry import AUGMENTATIONS, LOSSES, MODEL_TOWERS, NETWORKS, OPTIMIZERS, OWN, OWN_TOWERS, SCHEDULES
from cifar10.data.pipeline import Source
from cifar10.model import classifier, parts
from cifar10.model.class_weights import weigh
from cifar10.model.network_draws import at_position
from cifar10.model.optimizers import Clipped
from cifar10.model.untrained_variables import freezing
from cifar10.settings.presets import PRESETS, UNWEIGHTED, muon_ratio, parse_sizes
from cifar10.settings.training import DataSettings, RecipeSettings


class Recipe:
    """The network, optimizer, schedule and augmentation of a run, created from its settings.

    Args:
      num_classes: number of classes of the data set.
      count: number of training examples in an epoch; None for evaluation.
      epochs: the length of the run, or None if it is a number of steps.
      image_size: height and width in pixels of the images before augmentation.
      weights: class weights in the loss, float32 [num_classes]; None if all weights are 1.
      batches: the `Source` of a user's batches for training; in evaluation, whether the data set is a user's batches.

    Attributes:
      image_size, weights: the arguments.
      has_batches: whether the data set is a user's batches instead of images.
      own: the `own.model_towers.ModelTowers` of a model function, the `own.recipe_towers.RecipeTowers` of other users'
        code; else None.
      augmentation: a `data.augment.Augmentation`.
      schedule: a `model.schedule.Schedule`; not for evaluation.
      total_examples: number of training examples in the whole run, or None if its length is a number of steps.
      warnings: from `check`.

    Raises:
      KeyError: a setting names an object that is not registered.
      UsageError: the network does not accept the augmentation's image size, or a user's augmentation does not exist.
    """

    def __init__(self, settings: RecipeSettings, num_classes: int, seed: int = 0, count: int | None = None,
                 epochs: float | None = None, image_size: int = DataSettings.image_size,
                 weights: np.ndarray | None = None, batches: Source | bool = False):
        self._settings = settings
        self.weights = weights
        self._seed = seed
        self._network = NETWORKS.load(settings.network)
        self.warnings: list[Line] = []
        self._options = dict(num_classes=num_classes)
        self.total_examples = round(epochs * count) if epochs and count else None
        self.image_size = image_size
        sizes = parse_sizes(settings.sizes) if settings.sizes else None
        # A user's augmentation only changes training images.
        augmentation = settings.augmentation if count else AUGMENTATIONS.divided(settings.augmentation)[0]
        self.augmentation = AUGMENTATIONS.load(augmentation)(sizes, self.total_examples, seed, image_size)
        if count:
            warm_up = round(settings.warmup_epochs * count)
            self.schedule = SCHEDULES.load(settings.schedule)(count, self.total_examples, warm_up)
        self._refuse_other_sizes()
        is_own = any(OWN[flag].is_own(getattr(settings, flag)) for flag in ('network', 'augmentation', 'loss'))
        self.own: Any = None
        self.has_batches = bool(batches)
        if self.is_whole:
            self.own = pkgutil.resolve_name(MODEL_TOWERS)(self, settings, num_classes, seed, batches)
        elif is_own:
            self.own = pkgutil.resolve_name(OWN_TOWERS)(self, settings, num_classes, seed)

    def _refuse_other_sizes(self):
        refused = self._refused_by(self._network)
        if refused:
            accepted = self._network.image_sizes
            needed = f"images of {accepted[0]} pixels{' or more' if len(accepted) > 1 else ''}"
            networks = [f'--network={name}' for name in NETWORKS if not self._refused_by(NETWORKS.load(name))]
            raise UsageError(
                f'--network={self._settings.network} needs {needed}, but gets {refused[0]} from '
                f'--augmentation={self._settings.augmentation} --image_size={self.image_size}; use '
                f"{' or '.join([*networks, self.augmentation.flags_for(accepted[0])])}")

    def _refused_by(self, network):
        accepted = network.image_sizes
        return [size for size in self.augmentation.image_sizes() if accepted and size not in accepted]

    def learnt(self, source: Source) -> Mapping[str, Any]:
        """Returns the options of `inference` that the network computes from training images before training.

        The options are initial values of variables. A run computes them once; its checkpoints store the variables.
        """
        return self._network.learn(source.sample()) if self._network.learn else {}

    def check(self, batch_size: int, dtype: tf.DType, in_numbers: bool = True) -> None:
        """Checks that the recipe can be trained.

        Args:
          batch_size: number of images in a tower's batch.
          dtype: the towers' floating-point type.
          in_numbers: whether to run a user's network on random images, too.

        Raises:
          UsageError: a user's network breaks a rule, weight decay removes whole variables, or `freeze` matches no
            variable or all trained variables.
        """
        rate, decay, pattern = self._settings.learning_rate, self._settings.weight_decay, self._settings.freeze
        if decay and rate * decay >= 1:
            raise UsageError(f'--weight_decay={decay:g} is too large for the learning rate of {rate:g}; use less than '
                             f'{1 / rate:g}')
        if pattern is not None:
            variables = self.variables(batch_size, dtype)
            if not any(re.search(pattern, name) for name in variables):
                raise UsageError(f'--freeze={pattern} matches no variable; the network has '
                                 f"{textwrap.shorten(', '.join(variables), 200, placeholder=' ...')}")
            if not any(variable.trainable for variable in variables.values()):
                raise UsageError(f'--freeze={pattern} matches all trained variables; use a pattern that matches fewer')
        sizes = self.augmentation.image_sizes()
        self.warnings = self.own.check(batch_size, sizes, dtype, in_numbers) if self.own else []

    def variables(self, batch_size: int, dtype: tf.DType) -> dict[str, tf.Variable]:
        """Returns the variables of the network in training, by name; `check` describes the arguments."""
        with self._built(batch_size, dtype):
            step = tf.train.get_global_step()
            return {variable.op.name: variable for variable in tf.global_variables() if variable is not step}

    def check_parts(self, devices: int) -> None:
        """Raises a UsageError if the network has fewer parts than a tower has devices."""
        if devices > 1 and devices > self._parts:
            count = f'{self._parts} parts' if self._parts > 1 else 'a single part'
            if self.own:
                raise UsageError(f'--gpus_per_tower={devices} only divides built-in networks; leave it out')
            raise UsageError(f"--gpus_per_tower={devices}, but --network={self._settings.network} has {count}; "
                             f'use at most --gpus_per_tower={self._parts}')

    @contextlib.contextmanager
    def _built(self, batch_size, dtype):
        """Context with the network built for training in a new graph; yields its Division.

        If `batch_size` is None, the network is built for evaluation, with two images.
        """
        training = batch_size is not None
        sizes = self.augmentation.image_sizes()
        side = max(sizes) if training else sizes[-1]
        with seeded_graph(self._seed), parts.divided() as division, at_position(self._seed, tf.zeros([], tf.int64)):
            count = batch_size or 2
            images = tf.placeholder(tf.float32 if self.own else dtype, [count, side, side, 3])
            if self.own and training:
                self.own.train(self.own.placeholders(count, side), dtype)
            else:
                self.called(images, True) if training else self.inference(images)
            yield division

    def divided(self, devices: Sequence[str], gate: Callable | None = None) -> contextlib.AbstractContextManager:
        """Returns the `parts.divided` context for building the network on a tower's devices."""
        return parts.divided(devices, self._parts if len(devices) > 1 else 1, gate)

    @functools.cached_property
    def _parts(self):
        if self.own:
            return 1
        with self._built(None, tf.float32) as division:
            return division.parts

    def inference(self, images: tf.Tensor) -> tf.Tensor:
        """Builds the network for evaluation; returns logits, float32 [n, classes]."""
        return self.own.evaluate(images) if NETWORKS.is_own(self._settings.network) else self.called(images, False)

    @functools.cached_property
    def has_classes(self) -> bool:
        """Whether the network predicts classes; if not, it is a whole model with its own loss and metrics."""
        return not self.has_batches and (
            not self.is_whole or self.own.has_classes(self.augmentation.image_sizes()[-1]))

    def called(self, images: tf.Tensor, training: bool, **learnt: Any) -> tf.Tensor:
        """Calls the network's function; returns logits. A user's network needs its own graph.

        Args:
          images, training: the arguments of `model.Network.inference`.
          learnt: from `learnt`; empty if the variables are restored from a checkpoint.
        """
        pattern = self._settings.freeze
        with freezing(pattern) if pattern else contextlib.nullcontext():
            return self._network.inference(images, training, **self._options, **learnt)

    def augmented(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the images and labels for `add_loss`, given a tower's batch."""
        return self.augmentation.in_tower(images, labels, self._options['num_classes'])

    @property
    def is_whole(self) -> bool:
        """Whether the network is a whole model, which has its own loss, optimizer and learning rate."""
        return self._network.model is not None

    @property
    def moving_averages(self) -> bool:
        """Whether training keeps moving averages of the variables; a whole model may keep its own averages."""
        return self._settings.moving_averages and not self.is_whole

    def add_loss(self, images: tf.Tensor, labels: tf.Tensor, dtype: tf.DType, **learnt: Any) -> dict[str, tf.Tensor]:
        """Builds the network on a training batch and adds its loss; see `classifier.add_loss` and `inference`."""
        return classifier.add_loss(functools.partial(self.called, **learnt), images, labels, dtype, self.losses,
                                   self.loss_name)

    @property
    def loss_name(self) -> str:
        """The name of the mean of `losses`."""
        return 'own_loss' if LOSSES.is_own(self._settings.loss) else self._settings.loss

    def losses(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each example, float32 [n]; `classifier.cross_entropies` describes the arguments."""
        options = {} if LOSSES.is_own(self._settings.loss) else dict(smoothing=self._settings.label_smoothing)
        losses = LOSSES.load(self._settings.loss)(logits, labels, **options)
        return losses if self.weights is None else weigh(losses, labels, self.weights)

    def learning_rates(self, examples_seen: tf.Tensor) -> tuple[tf.Tensor | None, tf.Tensor | None]:
        """Returns the learning rate and Muon's auxiliary learning rate: float32 scalars, or None if there is none.

        Args:
          examples_seen: int64 scalar, number of training examples before this step.
        """
        if self.is_whole:
            return None, None
        settings = self._settings
        rate = settings.learning_rate
        with tf.name_scope('learning_rate'):
            factor = self.schedule.factor(examples_seen)
            auxiliary = rate * muon_ratio(settings.preset) * factor if settings.optimizer == 'muon' else None
            return rate * factor, auxiliary

    def optimizer(self, rate: tf.Tensor | None, auxiliary_rate: tf.Tensor | None) -> Callable[[], tf.train.Optimizer]:
        """Returns a function that makes an optimizer with these learning rates; it returns None for a whole model."""
        if self.is_whole:
            return lambda: None
        settings = self._settings
        make = OPTIMIZERS.load(settings.optimizer)
        options = dict(auxiliary_rate=auxiliary_rate, weight_decay=settings.weight_decay)
        options = {name: value for name, value in options.items() if value is not None}
        if not settings.clip_norm:
            return lambda: make(rate, **options)
        return lambda: Clipped(make(rate, **options), settings.clip_norm)

    def __str__(self):
        settings = self._settings
        if self.is_whole:
            augmentation = '' if self.has_batches else f'; augmentation {settings.augmentation}'
            return f'{settings.network}, a whole model{augmentation}'
        usual = dict(PRESETS[settings.preset], class_weights=UNWEIGHTED)
        changes = [f'{name}={value}' for name, value in vars(settings).items()
                   if name not in ('preset', 'learning_rate') and value not in (None, usual.get(name))]
        return f"{settings.preset}{' with ' if changes else ''}{', '.join(changes)}"
