"""Defines the plan of a run: all facts before its graph. `decisions.plan` makes it."""
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from cifar10.base.registry import DATASETS, PRECISIONS, UPDATE_MODES
from cifar10.data.datasets import ImageFiles
from cifar10.data.images import ImageSource
from cifar10.data.pipeline import Source
from cifar10.model.class_weights import class_weights
from cifar10.model.recipe import Recipe
from cifar10.parallel.devices import Devices
from cifar10.parallel.update import UpdateMode
from cifar10.run.checkpoints import Saved
from cifar10.run.folder import Folder
from cifar10.run.record import RunRecord
from cifar10.settings.presets import UNWEIGHTED
from cifar10.settings.training import TrainSettings


class Plan(NamedTuple):
    """A run before its graph.

    Attributes:
      settings: settings with the number of towers, batch size, learning rates and precision of this run.
      recipe: the network, the optimizer and the augmentation.
      source: the input of the training.
      test: the test images; None for a data set of the user's own batches.
      devices: the devices of all machines, with their towers.
      checkpoint: prefix of the restored checkpoint, or None.
      step, last_step: the step of that checkpoint, and the run's last step.
      examples_seen: the examples of the steps up to `step`, from the checkpoint.
      ended: the setting that has ended the run, from `run.ended`; None if steps remain.
      first_values: name of a variable -> the initial value that a new run takes from another model; or None.
      folder: the snapshot of the train_dir.
      restored: the restored checkpoint with its values, or None.
      record: the record of the start that saved this checkpoint, or None. Later starts may have saved nothing.
    """
    settings: TrainSettings
    recipe: Recipe
    source: Source
    devices: Devices
    mode: UpdateMode
    checkpoint: str | None
    step: int
    last_step: int
    folder: Folder
    examples_seen: int = 0
    ended: str | None = None
    first_values: Mapping[str, np.ndarray] | None = None
    test: ImageFiles | None = None
    restored: Saved | None = None
    record: RunRecord | None = None

    @property
    def precision(self) -> Any:
        """The `model.precision.Precision` of the towers."""
        return PRECISIONS.load(self.settings.towers.precision)

    @property
    def examples_per_step(self) -> int:
        """The number of examples of all towers in a step."""
        return self.mode.batches * self.settings.towers.batch_size

    def examples_at(self, step: int) -> int:
        """Returns the number of examples up to this step."""
        return self.examples_seen + (step - self.step) * self.examples_per_step


def _recipe_and_source(settings, data):
    """Returns (the recipe of a run, its input), given its training images or None."""
    batch_size, seed, epochs = settings.towers.batch_size, settings.run.seed, settings.run.epochs
    if data is None:
        source = DATASETS.load(settings.data.dataset)(batch_size, seed)
        return Recipe(settings.recipe, 0, seed, source.count, epochs, batches=source), source
    text = settings.recipe.class_weights
    weights = None
    if text != UNWEIGHTED:
        weights = class_weights(text, dict(zip(data.classes, data.class_counts)))
    recipe = Recipe(settings.recipe, len(data.classes), seed, data.count, epochs, data.size, weights)
    return recipe, ImageSource(data, recipe.augmentation, batch_size, seed)


def plan_of(settings: TrainSettings, data: ImageFiles | None, devices: Devices, prefix: str | None = None,
            step: int = 0) -> Plan:
    """Returns the Plan of a run with decided settings, which ends after `max_steps`.

    Args:
      settings: from `decisions.decided`.
      data: the training images; None for a data set of the user's own batches.
      devices: the devices for the towers.
      prefix, step: prefix and step of the restored checkpoint, if any.
    """
    towers = settings.towers
    devices = devices.with_towers(towers.num_towers)
    mode = UPDATE_MODES.load(towers.variable_update)
    mode = mode(devices, towers.local_steps) if mode.drifts else mode(devices)
    recipe, source = _recipe_and_source(settings, data)
    return Plan(settings, recipe, source, devices, mode, prefix, step, settings.run.max_steps,
                Folder(settings.run.train_dir))
