"""Opens the trained model of a run, for evaluation, classification and export, and its session.

The settings and classes come from the train_dir, the variables from checkpoints.
"""
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import say, say_all
from cifar10.base.directories import TRAIN_DIR
from cifar10.base.errors import RunError, TemporaryError, UsageError
from cifar10.base.graphs import AVERAGE, Loader, seeded_graph
from cifar10.base.registry import DATASETS
from cifar10.data.datasets import stored_size
from cifar10.data.photos.preparation import Preparation
from cifar10.model.averages import saved_names
from cifar10.model.recipe import Recipe
from cifar10.parallel import gpus
from cifar10.parallel.devices import Devices, choose
from cifar10.parallel.session_config import refuse_absent, session_config
from cifar10.run import checkpoints, trust
from cifar10.run.failures import plain_errors
from cifar10.run.folder import SETTINGS, Folder, exists, look
from cifar10.run.record import RunRecord
from cifar10.settings.evaluation import EvalSettings
from cifar10.settings.training import completed

_BATCH_PIXELS = 500 * 64 ** 2
_BATCH_SIZE = 128
_OTHERWISE = '; restore one from a copy, or name the train_dir of another run'


@dataclasses.dataclass(frozen=True)
class Model:
    """A trained model, configured by the settings of an evaluation.

    Attributes:
      look: function that returns the current contents of the run's folder; with `--checkpoint`, that checkpoint alone,
        under any name.
      record: the record of the run when it was opened, with the current location of its network.
      recipe: the run's network, optimizer and augmentation.
      use_ema: whether to use the moving averages of the variables.
      averaging: whether to average the predictions for several views of an image.
      batch_size: the number of images in a batch: the user's setting, else as many as fit into memory, or for a user's
        own batches the training batch size.
      devices: the device that computes the network.
    """
    look: Callable[[], Folder]
    record: RunRecord
    classes: tuple[str, ...]
    recipe: Recipe
    use_ema: bool
    averaging: bool
    batch_size: int
    devices: Devices

    @classmethod
    def open(cls, settings: EvalSettings, waits: bool = False) -> 'Model':
        """Opens the model of the settings' run, and claims the device to use.

        If `waits` is true, it waits for the first checkpoint.
        """
        devices = choose(1, settings.tower_device)
        gpus.claim(devices.num_gpus)
        looking = _looking(settings)
        _check_folder(folder := looking(), required=not waits)
        if not folder.checkpoints and waits:
            say('waiting', f'for the first checkpoint in {folder.path}; checks every second')
            while not folder.checkpoints:
                time.sleep(1)
                folder = looking()
        record = _record_of(settings, folder)
        dataset, classes = record.settings.data.dataset, record.classes or ()
        if has_batches := DATASETS.is_code(dataset):
            _refuse_for_batches(settings)
        elif not classes and not (classes := DATASETS.load(dataset).classes):
            raise UsageError(f'there is no {SETTINGS} in {folder.path}, so the classes are unknown; copy it from '
                             "the run's train_dir")
        recipe = Recipe(record.settings.recipe, len(classes), record.settings.run.seed,
                        image_size=record.settings.data.image_size, batches=has_batches)
        usual = record.settings.towers.batch_size if has_batches else batch_size(recipe.image_size, _BATCH_SIZE)
        use_ema, averaging = settings.use_ema, settings.test_time_averaging
        return cls(looking, record, classes, recipe, recipe.moving_averages if use_ema is None else use_ema,
                   recipe.augmentation.test_time_averaging if averaging is None else averaging,
                   settings.batch_size or usual, devices)

    @property
    def preparation(self) -> Preparation:
        """The crop and size of pictures for classification."""
        if self.recipe.has_batches:
            raise UsageError('the run was trained on batches, not on images; give a tf.data.Dataset of batches, or '
                             'nothing')
        size = self.recipe.image_size
        return Preparation(size, self.recipe.augmentation, stored_size(self.record.settings.data.dataset, size))

    def newest(self) -> checkpoints.Saved:
        """Returns the newest readable checkpoint; raises an error if there is none."""
        if (found := self.newer(None)) is None:
            raise _no_checkpoint(self.look())
        return found

    def newer(self, after: str | None) -> checkpoints.Saved | None:
        """Returns the newest readable checkpoint; None if there is none.

        Args:
          after: the prefix of a checkpoint; the result is None if it is still the newest.

        Raises:
          TemporaryError: a different run replaced this run.
        """
        is_new = self.look().checkpoints[-1:] != (after,)
        found = checkpoints.newest(self.look) if is_new else None
        folder = self.look()
        # A run writes its settings before its checkpoints. So if the settings still belong to this run, the checkpoint
        # does, too.
        if folder.run_id != self.record.run_id:
            raise TemporaryError(f'the run in {folder.path} was replaced or removed; start again to use the new one')
        return found if found and found.prefix != after else None

    @contextlib.contextmanager
    def session(self, build: Callable[[], Any]) -> Iterator['ModelSession']:
        """Yields a `ModelSession` and makes its graph the default."""
        with plain_errors():
            opened = ModelSession(build, self.devices, self.use_ema)
            with opened.session:
                yield opened


class ModelSession:
    """A graph with a network, and a session that loads a checkpoint into its variables.

    Args:
      build: adds the network to the graph.
      use_ema: whether to load the moving averages of variables.

    Attributes:
      built: the result of `build`.
    """

    def __init__(self, build: Callable[[], Any], devices: Devices, use_ema: bool):
        self._use_ema = use_ema
        with seeded_graph() as graph:
            self.built = build()
            self._variables = {variable.op.name: variable for variable in tf.global_variables()}
            with tf.device('/cpu:0'):
                self._loader = Loader(self._variables)
            tables = tf.tables_initializer()  # in a user's network
        self.session = tf.Session(graph=graph, config=session_config(devices))
        refuse_absent(self.session, devices)
        self.session.run(tables)

    def names_in(self, saved: Collection[str]) -> dict[str, str]:
        """Maps the names of variables to their names in a checkpoint that holds the names `saved`."""
        return saved_names(self._variables, saved, self._use_ema)

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Assigns values to the variables, by their names in a checkpoint."""
        self._loader.load(self.session, {name: values[source] for name, source in self.names_in(values).items()})

    def restore(self, found: checkpoints.Saved) -> None:
        """Restores a checkpoint; raises a UsageError if its network differs, or it lacks moving averages."""
        names = self.names_in(found.values)
        if problem := found.misfit({names[name]: each for name, each in self._variables.items()}):
            raise UsageError(f'{found.prefix} {problem}; it belongs to another network, so use another checkpoint')
        if self._use_ema and names == {name: name for name in names}:
            raise UsageError(f'{found.prefix} has no NAME{AVERAGE}; use --use_ema=false')
        self.load(found.values)


def batch_size(image_size: int, most: int) -> int:
    """Returns the number of images to evaluate at a time: at most `most`, and 2 million pixels."""
    return max(min(most, _BATCH_PIXELS // image_size ** 2), 1)


def look_at(settings: EvalSettings) -> Folder:
    """Returns the contents of the settings' run folder."""
    flag = 'checkpoint_dir' if settings.checkpoint_dir not in (settings.train_dir, TRAIN_DIR) else 'train_dir'
    return look(settings.checkpoint_dir, '' if settings.checkpoint else flag)


def _looking(settings):
    if not settings.checkpoint:
        return lambda: look_at(settings)
    prefix = checkpoints.named('checkpoint', settings.checkpoint).prefix
    return lambda: look_at(settings)._replace(files=frozenset(), checkpoints=(prefix,) if exists(prefix) else ())


def _check_folder(folder, required):
    """Raises an error if there is no folder, it is a checkpoint, or it lacks a required checkpoint."""
    if folder.checkpoints:
        return
    if exists(folder.path):
        raise UsageError(f'{folder.given} is a checkpoint; give the directory that contains it, or --checkpoint for it '
                         'alone')
    if not os.path.isdir(folder.path):
        raise UsageError(f'{folder.given} does not exist; give the train_dir of a run')
    if required or folder.of_checkpoints and not folder.record:
        raise _no_checkpoint(folder)


def _no_checkpoint(folder):
    """Returns the error for a directory without a usable checkpoint; a UsageError if it has no run either."""
    if folder.checkpoints:
        return RunError(checkpoints.none_readable(folder) + _OTHERWISE)
    if folder.of_checkpoints and not folder.record:
        return UsageError(f'{folder.given} holds {folder.of_checkpoints[0]}, but no whole checkpoint; copy the '
                          'missing files')
    error: type[Exception] = UsageError
    remedy = 'train first, or name the train_dir of a run'
    if folder.record:
        error = TemporaryError
        remedy = 'the run there has saved none yet; try again later, or evaluate without --run_once to wait for one'
    return error(f'no checkpoint in {folder.given}; {remedy}')


def _record_of(settings, folder):
    """Returns the newest record of a run, with the new location of its network if the settings give one."""
    record = folder.record
    if record is None:  # a run of the tutorial's scripts
        record = RunRecord(completed(dict(dataset=settings.dataset) if settings.dataset else {}))
        if settings.dataset not in (None, 'cifar10'):
            say('warning', f"the tutorial's scripts train on cifar10, but this is --dataset={settings.dataset}")
    record = trust.located(record, folder.path, settings.network, settings.dataset)
    dataset = record.settings.data.dataset
    if settings.dataset and DATASETS.is_code(settings.dataset) != DATASETS.is_code(dataset):
        raise UsageError(f'--dataset={settings.dataset}, but the run in {folder.path} has dataset={dataset}; give a '
                         f"{'function' if DATASETS.is_code(dataset) else 'data set of images'}, or leave it out")
    say_all(record.code_changes(network=record.settings.recipe.network))
    return record


def _refuse_for_batches(settings):
    """Raises a UsageError if a setting is for images, but the run was trained on a user's own batches."""
    for name in ('image', 'export_dir', 'test_time_averaging', 'per_class', 'num_examples', 'eval_data'):
        if (value := getattr(settings, name)) not in (None, False, EvalSettings.eval_data):
            raise UsageError(f'--{name}={value} is for runs on images, but this run was trained on batches; leave it '
                             'out (--dataset=FILE.py:FUNCTION evaluates other data, --csv=FILE writes predictions)')
