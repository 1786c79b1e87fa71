"""Finds, checks and reads checkpoints, also those of TensorFlow's CIFAR-10 tutorial; `checkpoint` writes them.

The tutorial's variables have the same names, but its global_step is a float32. It counts no examples and stores no
settings, so its checkpoints can be evaluated, and a run can start with their variables, but no run continues from them.
"""
import errno
import hashlib
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import Line, say
from cifar10.base.errors import UsageError, reason
from cifar10.base.graphs import EXAMPLES_SEEN
from cifar10.run.folder import BEST, CHECKPOINT, LIST, Folder, best_of, exists, glance
from cifar10.run.takeover import ANOTHER_RUN, refuse_others

_RETRY_SECS = 0.5

# Corrupt checkpoints that this process has reported, with the cause. A watching evaluator looks for checkpoints again
# and again, and reports each of them only once.
_reported = {}


class Saved(NamedTuple):
    """A checkpoint that was read.

    Attributes:
      prefix: of its files.
      values: its variables, by their names.
    """
    prefix: str
    values: dict[str, np.ndarray]

    @property
    def step(self) -> int:
        """Its global_step.

        Raises:
          UsageError: it has none, as in what the tutorial's oldest script for one GPU wrote.
        """
        if tf.GraphKeys.GLOBAL_STEP not in self.values:
            raise UsageError(f'{self.prefix} has no global_step, so its step is unknown; start a new run from it with '
                             f'--warm_start={self.prefix} in another --train_dir')
        return int(self.values[tf.GraphKeys.GLOBAL_STEP])

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shapes of its variables, by their names."""
        return {name: list(np.shape(value)) for name, value in self.values.items()}


def newest(look: Callable[[], Folder]) -> Saved | None:
    """Returns the newest checkpoint that can be read completely, or None.

    A corrupt checkpoint (a full disk, a broken copy) is reported once, in a line. One that a trainer removes
    while it is being read, because there are newer ones, is not corrupt; so `look` is called again.
    """
    corrupt, folder = set(), look()
    while candidates := [prefix for prefix in folder.checkpoints if prefix not in corrupt]:
        prefix = candidates[-1]
        try:
            return read(prefix)
        except Unreadable:
            time.sleep(_RETRY_SECS)  # the trainer may be removing it, file by file
        folder = look()
        if prefix in folder.checkpoints and (cause := corruption(prefix)):
            corrupt.add(prefix)
            if prefix not in _reported:
                _reported[prefix] = cause
                then = '; looking for an earlier one' if candidates[1:] else ''
                say('warning', f'{prefix} cannot be read ({cause}){then}')
    return None


def newest_of_run(folder: Folder) -> Saved | None:
    """Returns the checkpoint from which the run in a locked folder is resumed, or None if there are no checkpoints.

    Raises:
      UsageError: there are checkpoints, but none can be read, or another program wrote the newest.
    """
    found = newest(lambda: folder)
    if found is None and folder.checkpoints:
        raise UsageError(f'{none_readable(folder)}; {ANOTHER_RUN}')
    if found and EXAMPLES_SEEN not in found.values:
        raise UsageError(refuse_others(found.prefix))
    return found


def none_readable(folder: Folder) -> str:
    """Returns a phrase that says that no checkpoint in a folder can be read, and why."""
    causes = [f' ({_reported[prefix]})' for prefix in folder.checkpoints if prefix in _reported]
    return f"no checkpoint in {folder.given} can be read{''.join(causes[-1:])}"


def named(flag: str, given: str, others: str = '') -> Saved:
    """Returns the checkpoint that the user names; raises a UsageError if it cannot be read completely.

    Args:
      given: its value: the prefix, the name of the index, or DIR/best for the best checkpoint in DIR.
      others: what else the flag takes, for the message, such as 'a directory, or '.
    """
    prefix = given.removesuffix('.index')
    folder, name = os.path.split(prefix)
    if name == 'best' and not exists(prefix):
        if (best := best_of(folder)) is None:
            raise UsageError(f'--{flag}={given}: there is no {os.path.join(folder, BEST)}; a run with --keep_best '
                             f'writes it after its first evaluation. Give {others}the prefix of a checkpoint')
        prefix = os.path.join(folder, f"{CHECKPOINT}-{best['step']}")
    if exists(prefix):
        try:
            return read(prefix)
        except Unreadable as error:
            raise UsageError(f'--{flag}={given} cannot be read ({error}); give another checkpoint') from error
    folder, name = (given, '') if os.path.isdir(given) else os.path.split(prefix)
    found = glance(folder, flag)
    if name == LIST and name in found.files:
        raise UsageError(f'--{flag}={given} is only a list of checkpoints; give {others}the prefix of one')
    is_half = any(each.startswith(f'{name}.data-') for each in found.files)
    why = f', because {prefix}.index is missing' if is_half else ''
    example = [os.path.join(folder, f'{CHECKPOINT}-1000'), *others_in(found), *found.checkpoints][-1]
    raise UsageError(f'--{flag}={given}: there is no such checkpoint{why}; give {others}the prefix of one, such as '
                     f'{example}')


def others_in(folder: Folder) -> list[str]:
    """Returns the prefixes of the checkpoints in a folder that can be read and have other names than those of a run."""
    prefixes = {os.path.join(folder.path, name.removesuffix('.index')) for name in folder.files
                if name.endswith('.index')} - set(folder.checkpoints)
    return [prefix for prefix in sorted(prefixes) if corruption(prefix) is None]


class Unreadable(OSError):
    """A checkpoint cannot be read; the message is a phrase that says why."""


def read(prefix: str) -> Saved:
    """Returns a checkpoint, whose lengths and checksums are verified; raises an Unreadable if it cannot be read."""
    try:
        opened = reader(prefix)
        values = {name: opened.get_tensor(name) for name in opened.get_variable_to_shape_map()}
    except Exception as error:  # of any type: the reader translates some of its errors and not others
        cause = reason(error)
        missing = '; copy what is missing' if cause.endswith(os.strerror(errno.ENOENT)) else ''
        raise Unreadable(cause + missing) from error
    if tf.GraphKeys.GLOBAL_STEP in values:
        values[tf.GraphKeys.GLOBAL_STEP] = np.int64(values[tf.GraphKeys.GLOBAL_STEP])  # a float32 in the tutorial's
    return Saved(prefix, values)


def corruption(prefix: str) -> str | None:
    """Returns why a checkpoint cannot be read, as a phrase, or None if it can."""
    try:
        read(prefix)
    except Unreadable as error:
        return str(error)
    return None


def other_images(dataset: str) -> list[str]:
    """Returns a warning if a data set is not that of the tutorial, whose checkpoints do not record theirs."""
    if dataset == 'cifar10':
        return []
    return [Line('warning', f"the tutorial's scripts train on cifar10, but this is --dataset={dataset}")]


def digest(prefix: str) -> str:
    """Returns the `digest_of` the variables in a checkpoint; raises an Unreadable if it cannot be read."""
    return digest_of(read(prefix).values)


def digest_of(values: Mapping[str, np.ndarray]) -> str:
    """Returns the SHA-256 of variables, whatever their order, in hexadecimal digits; types and shapes count as well."""
    sha256 = hashlib.sha256()
    for name, value in sorted(values.items()):
        array = np.asarray(value)
        sha256.update(f'{name} {array.dtype} {list(array.shape)}\n'.encode())
        sha256.update(array.tobytes())
    return sha256.hexdigest()


def reader(prefix: str) -> Any:
    """Returns TensorFlow's reader of the files of a checkpoint.

    Unlike `tf.train.load_checkpoint`, it does not read the newest checkpoint in a folder of the same name. TensorFlow
    takes the path of the folder for a pattern, so it gets a descriptor of a folder whose path has special characters.
    """
    folder, name = os.path.split(prefix)
    if not set(folder) & set('*?[]\\'):
        return tf.train.NewCheckpointReader(prefix)
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        opened = tf.train.NewCheckpointReader(f'/proc/self/fd/{descriptor}/{name}')
    except BaseException:
        os.close(descriptor)
        raise
    weakref.finalize(opened, os.close, descriptor)  # it opens the data when they are read
    return opened


def incompatibility(shapes: Mapping[str, Sequence[int]], variables: Mapping[str, tf.Variable]) -> str | None:
    """Returns a phrase for the first variable, by its name in a checkpoint, that does not fit it; None if all fit.

    Args:
      shapes: of the checkpoint's variables, by their names.
      variables: by their names in the checkpoint.
    """
    for name, variable in sorted(variables.items()):
        if name not in shapes:
            return f'has no {name}'
        if list(shapes[name]) != variable.shape.as_list():
            return f'has {name} of shape {list(shapes[name])} instead of {variable.shape.as_list()}'
    return None
