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
from cifar10.config import TEST_FRACTION, EvalConfig
from cifar10.data.records import Records
from cifar10.directories import refuse_default_of_others
from cifar10.errors import RunError, UsageError, difference, reason
from cifar10.optim.averages import saved_names
from cifar10.presets import PRESETS
from cifar10.recipe import Recipe
from cifar10.registry import AUGMENTATIONS, DATASETS, NETWORKS
from cifar10.run import checkpoint
from cifar10.run.train_dir import SETTINGS, TrainDir
from cifar10.trained import best


@dataclasses.dataclass(frozen=True)
class Trained:
    """What is known of a run without its checkpoints.

    Attributes:
      settings: those of its TrainConfig.
      classes: the names of the classes.
      recipe: what was trained and how.
      use_ema: whether the moving averages of the variables are used.
      averaging: whether predictions for several views of an image are averaged.
    """
    settings: dict
    classes: tuple[str, ...]
    recipe: Recipe
    use_ema: bool
    averaging: bool


def find(config: EvalConfig, directory: TrainDir, data: Records | None = None) -> Trained:
    """Returns the run of a directory.

    Args:
      config: what the user says of it.
      directory: its train_dir.
      data: the images that it is used with, whose classes are its own; None where there are none.

    Raises:
      UsageError: it cannot be used as the config says, or by this version.
    """
    run = settings(config, directory)
    # Versions before this one did not store the classes.
    classes = tuple(run.get('classes', data.classes if data else ()))
    if data and data.classes != classes:
        raise UsageError(f"--dataset={run['dataset']} has other classes than the run in {directory.path} was "
                         f"trained on (now {difference(classes, data.classes)}); use its own images")
    classes = classes or DATASETS.load(run['dataset']).classes
    if not classes:
        raise UsageError(f'the run in {directory.path} does not say what its classes are; start its training once more '
                         'to have them added')
    recipe = Recipe(run, len(classes))
    return Trained(run, classes, recipe, run['moving_averages'] if config.use_ema is None else config.use_ema,
                   recipe.augmentation.test_time_averaging if config.test_time_averaging is None
                   else config.test_time_averaging)


def settings(config: EvalConfig, directory: TrainDir) -> dict:
    """Returns the settings of a run, with what the user says has moved; raises UsageErrors as `find` does."""
    if loss := directory.describe_loss():
        raise UsageError(f'{loss}; start the training once more, with the flags of the run, to have it written again')
    # The classic scripts left no settings.
    run = {**PRESETS['classic'], 'dataset': config.dataset or next(iter(DATASETS)), 'test_fraction': TEST_FRACTION,
           **(directory.settings() or {})}
    for name, known in (('dataset', DATASETS), ('network', NETWORKS), ('augmentation', AUGMENTATIONS)):
        given = getattr(config, name, None)
        if given and known.is_own(given) and known.is_own(run[name]):
            run[name] = given
        if given not in (None, run[name]):
            raise UsageError(f'--{name}={given}, but the run in {directory.path} has {name}={run[name]}; leave '
                             f'--{name} out')
        if run[name] not in known:
            raise UsageError(f'the run in {directory.path} has {name}={run[name]}, which this version does not know')
    if NETWORKS.is_own(run['network']) and not config.network:
        _refuse_code_of_others(run['network'], directory)
    return run


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
