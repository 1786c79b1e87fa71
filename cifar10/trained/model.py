"""A trained run as evaluation, classification and export use it.

Settings and classes come from its train_dir, variables from its checkpoints.
"""
import contextlib
import dataclasses
import os
import stat
from collections.abc import Iterator

import tensorflow.compat.v1 as tf

from cifar10 import files
from cifar10.data.records import Records
from cifar10.directories import refuse_default_of_others
from cifar10.errors import RunError, UsageError, difference, reason
from cifar10.optim.averages import saved_names
from cifar10.recipe import Recipe
from cifar10.registry import DATASETS, NETWORKS
from cifar10.run import checkpoint
from cifar10.run.train_dir import SETTINGS, Stored, TrainDir
from cifar10.settings.definition import fields
from cifar10.settings.evaluation import EvalSettings
from cifar10.settings.training import DataSettings, RecipeSettings
from cifar10.trained import best


@dataclasses.dataclass(frozen=True)
class Trained:
    """What is known of a run without its checkpoints.

    Attributes:
      stored: what the run stored, with what the user says has moved.
      classes: the names of the classes.
      recipe: what was trained and how.
      use_ema: whether the moving averages of the variables are used.
      averaging: whether predictions for several views of an image are averaged.
    """
    stored: Stored
    classes: tuple[str, ...]
    recipe: Recipe
    use_ema: bool
    averaging: bool


def load_run(settings: EvalSettings, directory: TrainDir, data: Records | None = None) -> Trained:
    """Returns the run of a directory.

    Args:
      settings: what the user says of it.
      directory: its train_dir.
      data: the images that it is used with, whose classes are its own; None where there are none.

    Raises:
      UsageError: it cannot be used as the settings say, or by this version.
    """
    stored = load_stored(settings, directory)
    dataset = stored.settings.data.dataset
    classes = stored.classes
    if classes is None:  # early versions did not store them
        classes = data.classes if data else DATASETS.load(dataset).classes
    if data and data.classes != classes:
        raise UsageError(f'--dataset={dataset} has other classes than the run in {directory.path} was '
                         f'trained on (now {difference(classes, data.classes)}); use its own images')
    if not classes:
        raise UsageError(f'the run in {directory.path} does not say what its classes are; start its training once more '
                         'to have them added')
    recipe = Recipe(stored.settings.recipe, len(classes))
    use_ema = settings.use_ema
    if use_ema is None:
        use_ema = stored.settings.recipe.moving_averages
    averaging = settings.test_time_averaging
    if averaging is None:
        averaging = recipe.augmentation.test_time_averaging
    return Trained(stored, classes, recipe, use_ema, averaging)


def load_stored(settings: EvalSettings, directory: TrainDir) -> Stored:
    """Returns what a run stored, with what the user says has moved; raises UsageErrors as `load_run` does."""
    if loss := directory.describe_lost_settings():
        raise UsageError(f'{loss}; start the training once more, with the flags of the run, to have it written again')
    stored = directory.stored()
    if stored is None:
        stored = Stored.of_tutorial()
        if settings.dataset:
            stored = stored._replace(settings=stored.settings.replace(dataset=settings.dataset))
    dataset = _moved('dataset', settings.dataset, stored.settings.data.dataset, directory)
    network = _moved('network', settings.network, stored.settings.recipe.network, directory)
    if NETWORKS.is_own(network) and not settings.network:
        _refuse_code_of_others(network, directory)
    for field in fields(DataSettings, RecipeSettings):
        choices, value = field.metadata['choices'], stored.settings.flat()[field.name]
        if choices and value not in choices:
            raise UsageError(f'the run in {directory.path} has {field.name}={value}, which this version does not know')
    return stored._replace(settings=stored.settings.replace(dataset=dataset, network=network))


def _moved(name, given, stored, directory):
    """Returns the user's own file or folder as it is called now; any other setting is what the run has stored."""
    choices = {field.name: field for field in fields(DataSettings, RecipeSettings)}[name].metadata['choices']
    if given is None or given == stored:
        return stored
    if choices.is_own(given) and choices.is_own(stored):
        return given
    raise UsageError(f'--{name}={given}, but the run in {directory.path} has {name}={stored}; leave --{name} out')


def _refuse_code_of_others(network, directory):
    """Raises a UsageError if the Python file that a run names may be somebody else's: it would be run."""
    file = network.rpartition(':')[0]
    settings = os.path.join(directory.path, SETTINGS)
    for path in (directory.path, settings, file, os.path.dirname(file)):
        # In a folder such as /tmp everybody may write, but not replace what belongs to another user.
        shared = path == os.path.dirname(file) and os.path.isdir(path) and os.stat(path).st_mode & stat.S_ISVTX
        if os.path.exists(path) and not shared and (why := files.open_to_others(path)):
            raise UsageError(f"the run in {directory.path} names the Python file {file}, which may be somebody else's "
                             f'code, because {path} {why}; give --network={network} if you trust it')


def check_checkpoint_dir(directory: TrainDir, needed: bool) -> None:
    """Raises a UsageError if what was named as a directory of checkpoints is a checkpoint or an eval_dir.

    Args:
      directory: that was named.
      needed: whether a checkpoint must be there; if there is none, the error that `no_checkpoint` returns is raised.
    """
    refuse_default_of_others(directory.path, '--checkpoint_dir')
    if directory.checkpoints():
        return
    if os.path.exists(directory.path + '.index'):
        raise UsageError(f'--checkpoint_dir={directory.path} is a checkpoint; give the directory that it is in')
    found = best.folder(directory.path)
    if TrainDir(found).checkpoints():
        raise UsageError(f'--checkpoint_dir={directory.path} is the eval_dir of a run; its best checkpoint is in '
                         f'--checkpoint_dir={found}')
    if needed:
        raise no_checkpoint(directory)


class Restorer:
    """Puts the values of a checkpoint into the variables of the current graph.

    Args:
      use_ema: whether to take the moving averages of the variables.
    """

    def __init__(self, use_ema: bool):
        self._restored = saved_names(use_ema)
        with tf.device('/cpu:0'):
            self._saver = tf.train.Saver(self._restored)

    def restore(self, session: tf.Session, prefix: str) -> int | None:
        """Restores a checkpoint; returns its step, or None if it was rotated away before it was read.

        Raises:
          UsageError: it is of another network.
        """
        try:
            self._check(prefix)
            step = checkpoint.saved_step(prefix)
            self._saver.restore(session, prefix)
        except (tf.errors.OpError, ValueError):
            if not os.path.exists(prefix + '.index'):
                return None
            raise
        return step

    def restore_newest(self, session: tf.Session, directory: TrainDir) -> tuple[str, int]:
        """Restores the newest checkpoint of a directory; returns (its prefix, its step).

        Raises:
          RunError: there is none that can be read.
          UsageError: it is of another network.
        """
        while True:
            prefix = checkpoint.newest(directory)
            if prefix is None:
                raise no_checkpoint(directory)
            step = self.restore(session, prefix)
            if step is not None:
                return prefix, step

    def _check(self, prefix):
        found = checkpoint.incompatibility(prefix, self._restored)
        if found:
            plain = {name.removesuffix('/ExponentialMovingAverage'): v for name, v in self._restored.items()}
            of_another = checkpoint.incompatibility(prefix, plain)
            remedy = 'it belongs to another network' if of_another else 'use --use_ema=false'
            raise UsageError(f'{prefix} {found}; {remedy}')


def no_checkpoint(directory: TrainDir) -> RunError | UsageError:
    """Returns the error that a directory has no checkpoint that can be used; a UsageError, if there is no directory."""
    if directory.checkpoints():
        return RunError(f'no checkpoint in --checkpoint_dir={directory.path} can be read')
    kind = RunError if os.path.isdir(directory.path) else UsageError
    return kind(f'no checkpoint in --checkpoint_dir={directory.path}; train first, or name the train_dir of a run')


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Context that turns an error of TensorFlow into a RunError."""
    try:
        yield
    except tf.errors.OpError as error:
        raise RunError(reason(error)) from error
