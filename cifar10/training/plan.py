"""The plan of a run: all that is known before its graph is built. `decisions.plan` makes it."""
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
    """A run, before its graph is built.

    Attributes:
      settings: with the number of towers, the batch size, the learning rates and the precision of this run.
      recipe: the network, the optimizer and the augmentation.
      source: the input of the training.
      test: the test images; None for a data set of the user's own batches.
      devices: the devices of all machines, with the towers on them.
      checkpoint: prefix of the checkpoint that the run starts from, or None.
      step, last_step: the step of that checkpoint, and the one that the run ends after.
      examples_seen: the examples of the steps up to `step`, as the checkpoint has counted them.
      ended: the setting that has ended the run, as `run.ended` returns it; None if steps remain.
      first_values: name of a variable -> the value that a new run takes from another model, instead of an initial one;
        or None.
      folder: what is in the train_dir.
      restored: the checkpoint that the run starts from, with its values, or None.
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
        """The `model.precision.Precision` that the towers compute in."""
        return PRECISIONS.load(self.settings.towers.precision)

    @property
    def examples_per_step(self) -> int:
        """Examples of all towers in a step."""
        return self.mode.batches * self.settings.towers.batch_size

    def examples_at(self, step: int) -> int:
        """Returns the examples of all steps up to this one."""
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
    """Returns the Plan of a run whose settings are all decided; it ends after `max_steps`.

    Args:
      settings: as `decisions.decided` returns them.
      data: the training images; None for a data set of the user's own batches.
      devices: to spread the towers over.
      prefix, step: of the checkpoint that the run starts from, if any.
    """
    towers = settings.towers
    devices = devices.with_towers(towers.num_towers)
    mode = UPDATE_MODES.load(towers.variable_update)
    mode = mode(devices, towers.local_steps) if mode.drifts else mode(devices)
    recipe, source = _recipe_and_source(settings, data)
    return Plan(settings, recipe, source, devices, mode, prefix, step, settings.run.max_steps,
                Folder(settings.run.train_dir))
