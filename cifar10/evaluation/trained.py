"""A trained run, for evaluation, classification and export.

Its settings and classes come from its train_dir, the variables from its checkpoints.
"""
import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base.console import say_all
from cifar10.base.directories import TRAIN_DIR
from cifar10.base.errors import RunError, TemporaryError, UsageError
from cifar10.base.graphs import AVERAGE, Loader, seeded_graph
from cifar10.base.registry import DATASETS
from cifar10.data.photos.preparation import Preparation
from cifar10.data.records import Records, stored_size
from cifar10.evaluation import evaluator
from cifar10.model.averages import saved_names
from cifar10.model.recipe import Recipe
from cifar10.parallel import gpus
from cifar10.parallel.devices import Devices, choose
from cifar10.run import checkpoints, trust
from cifar10.run.failures import plain_errors
from cifar10.run.folder import SETTINGS, Folder, exists, look
from cifar10.run.record import RunRecord
from cifar10.settings.evaluation import EvalSettings
from cifar10.settings.training import completed

_BATCH_SIZE = 128
OWN_IMAGES = 'evaluate it on the images that it was trained with'  # the remedies in messages
_OTHERWISE = '; restore one from a copy, or name the train_dir of another run'


@dataclasses.dataclass(frozen=True)
class Trained:
    """What is known of a run without reading a checkpoint.

    Attributes:
      record: the newest record of the run, with the present location of its network.
      recipe: the run's network, optimizer and augmentation.
      use_ema: whether to use the moving averages of the variables.
      averaging: whether to average the predictions for several views of an image.
      preparation: how a picture is cropped and resized before it is classified.
    """
    record: RunRecord
    classes: tuple[str, ...]
    recipe: Recipe
    use_ema: bool
    averaging: bool
    preparation: Preparation


def load_run(settings: EvalSettings, folder: Folder, record: RunRecord | None = None,
             data: Records | None = None) -> Trained:
    """Returns the run in a directory, used as the settings say.

    Args:
      record: what `load_record` returned, if it was called before.
      data: the run's own images, to evaluate it on; they must have its classes. None if they are not needed.
    """
    record = record or load_record(settings, folder)
    classes = record.classes
    if classes is None:  # a run of the tutorial's scripts
        classes = data.classes if data else DATASETS.load(record.settings.data.dataset).classes
        if not classes:
            raise UsageError(f'there is no {SETTINGS} in {folder.path}, so the classes are unknown; copy it from '
                             "the run's train_dir")
    elif data:
        record.refuse_another(dict(classes=data.classes), folder.given, OWN_IMAGES)
    recipe = Recipe(record.settings.recipe, len(classes), image_size=record.settings.data.image_size)
    use_ema = settings.use_ema
    if use_ema is None:
        use_ema = recipe.moving_averages
    averaging = settings.test_time_averaging
    if averaging is None:
        averaging = recipe.augmentation.test_time_averaging
    data_size = stored_size(record.settings.data.dataset, recipe.image_size)
    preparation = Preparation(recipe.image_size, recipe.augmentation, data_size)
    return Trained(record, classes, recipe, use_ema, averaging, preparation)


def batch_size(settings: EvalSettings, run: Trained) -> int:
    """Returns how many images are in a batch: as many as the user says, or as fit into memory."""
    return settings.batch_size or evaluator.batch_size(run.recipe.image_size, _BATCH_SIZE)


def load_record(settings: EvalSettings, folder: Folder) -> RunRecord:
    """Returns the newest record of a run, with the new location of its network if the settings give one."""
    record = folder.record
    if record is None:
        record = RunRecord(completed(dict(dataset=settings.dataset) if settings.dataset else {}))
        say_all(checkpoints.other_images(record.settings.data.dataset))
    record = trust.located(record, folder.path, settings.network)
    say_all(record.code_changes(network=record.settings.recipe.network))
    return record


def open_checkpoint_dir(settings: EvalSettings, required: bool = True) -> tuple[Callable[[], Folder], Devices]:
    """Checks the directory of the checkpoints, and claims the device to use.

    Args:
      required: whether a checkpoint must exist already.

    Returns:
      (a function that returns what is in the directory whenever it is called; with `--checkpoint`, that is the only
      checkpoint there, whatever its name is, the device).
    """
    devices = choose(1, settings.tower_device)
    gpus.claim(devices.num_gpus)
    if settings.checkpoint:
        prefix = checkpoints.named('checkpoint', settings.checkpoint).prefix

        def look_at_one():
            folder = look(os.path.dirname(prefix) or '.', flag='')
            return folder._replace(files=frozenset(), checkpoints=(prefix,) if exists(prefix) else ())
        return look_at_one, devices
    flag = 'checkpoint_dir' if settings.checkpoint_dir not in (settings.train_dir, TRAIN_DIR) else 'train_dir'
    found = functools.partial(look, settings.checkpoint_dir, flag)
    _check_checkpoint_dir(found(), required)
    return found, devices


def _check_checkpoint_dir(folder, required):
    """Raises a UsageError if there is no directory, or it is a checkpoint; or `no_checkpoint`, if one is required."""
    if folder.checkpoints:
        return
    if exists(folder.path):
        raise UsageError(f'{folder.given} is a checkpoint; give the directory that contains it, or --checkpoint for it '
                         'alone')
    if not os.path.isdir(folder.path):
        raise UsageError(f'{folder.given} does not exist; give the train_dir of a run, which its training makes')
    if required or folder.of_checkpoints and not folder.record:
        raise no_checkpoint(folder)


@contextlib.contextmanager
def restored(run: Trained, look: Callable[[], Folder], devices: Devices,
             build: Callable[[], Any]) -> Iterator[tuple[tf.Session, checkpoints.Saved, Any]]:
    """Context with a session in which the newest checkpoint of a run is restored.

    Args:
      look, devices: what `open_checkpoint_dir` returned.
      build: adds the network of the run to the graph.

    Yields:
      (the session, the checkpoint, what `build` returned).
    """
    with plain_errors(), seeded_graph():
        built = build()
        restorer = Restorer(run)
        with evaluator.trained_session(devices) as session:
            found = checkpoints.newest(look)
            folder = look()
            if found is None:
                raise no_checkpoint(folder)
            # A run writes its settings before its checkpoints. So if the settings are still those of this run, the
            # checkpoint was too.
            if folder.run_id != run.record.run_id:
                raise TemporaryError(f'the run in {folder.path} was replaced; start again to use the new one')
            restorer.restore(session, found)
            yield session, found, built


class Restorer:
    """Restores the variables of the current graph, which has the network of a run, from checkpoints."""

    def __init__(self, run: Trained):
        self._averaged = run.use_ema
        self._variables = {variable.op.name: variable for variable in tf.global_variables()}
        with tf.device('/cpu:0'):
            self._loader = Loader(self._variables)

    def restore(self, session: tf.Session, found: checkpoints.Saved) -> None:
        """Restores a checkpoint; raises a UsageError if it belongs to another network, or has no moving averages."""
        names = saved_names(self._variables, found.shapes, self._averaged)
        by_saved_name = {names[name]: each for name, each in self._variables.items()}
        problem = checkpoints.incompatibility(found.shapes, by_saved_name)
        if problem:
            raise UsageError(f'{found.prefix} {problem}; it belongs to another network, so use another checkpoint')
        if self._averaged and names == {name: name for name in names}:
            raise UsageError(f'{found.prefix} has no NAME{AVERAGE}; use --use_ema=false')
        self._loader.load(session, {name: found.values[source] for name, source in names.items()})


def no_checkpoint(folder: Folder) -> RunError | UsageError:
    """Returns an error that says that a directory has no usable checkpoint; a UsageError if it has no run either."""
    if folder.checkpoints:
        return RunError(checkpoints.none_readable(folder) + _OTHERWISE)
    if folder.of_checkpoints and not folder.record:
        return UsageError(f'{folder.given} holds {folder.of_checkpoints[0]}, but no whole checkpoint; copy what is '
                          'missing')
    error, remedy = UsageError, 'train first, or name the train_dir of a run'
    if folder.record:
        error = TemporaryError
        remedy = 'the run there has saved none yet; try again later, or evaluate without --run_once to wait for one'
    return error(f'no checkpoint in {folder.given}; {remedy}')
