"""Finds, checks and reads checkpoints, also those of TensorFlow's CIFAR-10 tutorial; `checkpoint` writes them.

The tutorial's variables have the same names. But its global_step is a float32, nothing counts examples, and no
settings are stored.
"""
import errno
import glob
import hashlib
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import say
from cifar10.base.errors import UsageError, reason
from cifar10.base.graphs import EXAMPLES_SEEN
from cifar10.run.names import LIST, exists
from cifar10.run.train_dir import ANOTHER_DIR, ANOTHER_RUN, TrainDir

_RETRY_SECS = 0.5

# Corrupt checkpoints and files without an index that this process has reported, with the cause. A watching evaluator
# looks for checkpoints again and again, from several places, and reports each of them only once.
_reported = {}


def newest(directory: TrainDir) -> str | None:
    """Returns the prefix of the newest checkpoint that can be read completely, or None.

    A corrupt checkpoint (a full disk, a broken copy) is reported once, in a line. One that a trainer removes
    while it is being read, because there are newer ones, is not corrupt.
    """
    corrupt = set()
    while candidates := [prefix for prefix in directory.checkpoints() if prefix not in corrupt]:
        prefix = candidates[-1]
        if corruption(prefix) is None:
            _report_newer(directory, prefix)
            return prefix
        time.sleep(_RETRY_SECS)  # the trainer may be removing it, file by file
        if prefix in directory.checkpoints() and (cause := corruption(prefix)):
            corrupt.add(prefix)
            if prefix not in _reported:
                _reported[prefix] = cause
                then = '; looking for an earlier one' if candidates[1:] else ''
                say(f'warning: {prefix} cannot be read ({cause}){then}')
    return None


def _report_newer(directory, prefix):
    """Says once that there are data of a later checkpoint than the newest one, but no index of it."""
    if set(directory.newer_without_index()) <= _reported.keys():
        return
    time.sleep(_RETRY_SECS)  # the trainer may be about to write the index, or to remove the rest
    for path in directory.newer_without_index():
        if path not in _reported:
            _reported[path] = 'no index'
            say(f'warning: {path} has no index beside it, as after an interrupted save or an incomplete copy, so it is '
                f'passed over; the newest checkpoint is {prefix}')


def newest_of_run(directory: TrainDir) -> str | None:
    """Returns the prefix of the checkpoint from which a run is resumed, or None if there are no checkpoints.

    Raises:
      UsageError: there are checkpoints, but none can be read, or it is unclear which program wrote them.
    """
    if directory.stored() is None:
        for prefix in directory.checkpoints():
            try:
                reader(prefix)
            except Exception as error:  # of any type, as in `corruption`
                raise UsageError(f'{prefix} cannot be read ({reason(error)}), and no run goes on beside a broken '
                                 "checkpoint that may be another program's; move its files away, or "
                                 f'{ANOTHER_DIR}') from error
    prefix = newest(directory)
    if prefix is None and directory.checkpoints():
        remedy = ANOTHER_RUN if directory.stored() else ANOTHER_DIR
        raise UsageError(f'{none_readable(directory)}; {remedy}')
    return prefix


def none_readable(directory: TrainDir) -> str:
    """Returns a phrase that says that no checkpoint in a directory can be read, and why."""
    causes = [f' ({_reported[prefix]})' for prefix in directory.checkpoints() if prefix in _reported]
    return f"no checkpoint in {directory.given} can be read{''.join(causes[-1:])}"


def named(flag: str, given: str, others: str = '') -> str:
    """Returns the prefix of a checkpoint that the user names; raises a UsageError if it cannot be read completely.

    Args:
      flag: the flag that names it.
      given: its value: the prefix, or the name of the index.
      others: what else the flag takes, for the message, such as 'a directory, or '.
    """
    prefix = given.removesuffix('.index')
    if not exists(prefix):
        if os.path.basename(prefix) == LIST and os.path.isfile(prefix):
            raise UsageError(f'--{flag}={given} is only a list of checkpoints; give {others}the prefix of one')
        why = f', because {prefix}.index is missing' if glob.glob(glob.escape(prefix) + '.data-*') else ''
        folder = TrainDir(given if os.path.isdir(given) else os.path.dirname(prefix))
        example = (folder.checkpoints() or others_in(folder) or [f'{folder.checkpoint_prefix}-1000'])[-1]
        raise UsageError(f'--{flag}={given}: there is no such checkpoint{why}; give {others}the prefix of one, such as '
                         f'{example}')
    if cause := corruption(prefix):
        raise UsageError(f'--{flag}={given} cannot be read ({cause}); give another checkpoint')
    return prefix


def others_in(folder: TrainDir) -> list[str]:
    """Returns the prefixes of the checkpoints in a folder that can be read and have other names than those of a run."""
    found = glob.glob(os.path.join(glob.escape(folder.path), '*.index'))
    prefixes = {prefix.removesuffix('.index') for prefix in found} - set(folder.checkpoints())
    return [prefix for prefix in sorted(prefixes) if corruption(prefix) is None]


def corruption(prefix: str) -> str | None:
    """Returns why a checkpoint cannot be read, as a phrase, or None if it can."""
    try:
        _values(prefix)  # which checks lengths and checksums
    except Exception as error:  # of any type: the reader translates some of its errors and not others
        cause = reason(error)
        return f'{cause}; copy what is missing' if cause.endswith(os.strerror(errno.ENOENT)) else cause
    return None


def is_ours(prefix: str) -> bool:
    """Returns whether this program wrote a checkpoint; the tutorial's scripts count no examples."""
    try:
        return reader(prefix).has_tensor(EXAMPLES_SEEN)
    except Exception:
        # Corrupted since it was written: no run begins beside a checkpoint that cannot be read. Only others write V1.
        return not os.path.isfile(prefix)


def is_tutorials(prefix: str) -> bool:
    """Returns whether a checkpoint that this program did not write has the names of the tutorial's network."""
    return reader(prefix).has_tensor('softmax_linear/weights')


def other_images(dataset: str) -> list[str]:
    """Returns a warning if the name of a data set is not that of the tutorial, whose checkpoints do not say it."""
    if dataset == 'cifar10':
        return []
    return [f"warning: the tutorial's scripts train on cifar10, and this is --dataset={dataset}"]


def progress(prefix: str) -> tuple[int, int | None]:
    """Returns (the global_step in a checkpoint, how many examples the run had seen by then, if they were counted)."""
    values = read(prefix)
    return int(values[tf.GraphKeys.GLOBAL_STEP]), values.get(EXAMPLES_SEEN)


def digest(prefix: str) -> str:
    """Returns the `digest_of` the variables in a checkpoint.

    Raises:
      OSError: the checkpoint cannot be read.
    """
    try:
        return digest_of(_values(prefix))
    except Exception as error:  # of any type, as in `corruption`
        raise OSError(reason(error)) from error


def digest_of(values: Mapping[str, np.ndarray]) -> str:
    """Returns the SHA-256 of variables, as hexadecimal digits; the types and shapes of their values count as well.

    Args:
      values: arrays by the names of the variables; their order does not matter.
    """
    sha256 = hashlib.sha256()
    for name, value in sorted(values.items()):
        array = np.asarray(value)
        sha256.update(f'{name} {array.dtype} {list(array.shape)}\n'.encode())
        sha256.update(array.tobytes())
    return sha256.hexdigest()


def reader(prefix: str) -> Any:
    """Returns TensorFlow's reader of the files of a checkpoint.

    Not that of `tf.train.load_checkpoint`, which takes a folder of the same name beside them for the newest in it.
    TensorFlow would take the name of the folder for a pattern of names, so it gets its descriptor in place of that.
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


def read(prefix: str) -> dict[str, np.ndarray]:
    """Returns the variables in a checkpoint by their names; global_step as an int64.

    Raises:
      UsageError: there is no global_step, as in what the tutorial's oldest script for one GPU wrote.
    """
    values = _values(prefix)
    if tf.GraphKeys.GLOBAL_STEP not in values:
        raise UsageError(f'{prefix} has no global_step, so its step is unknown; start a new run from it with '
                         f'multi_gpu_train.py --warm_start={prefix} in another --train_dir')
    return {**values, tf.GraphKeys.GLOBAL_STEP: np.int64(values[tf.GraphKeys.GLOBAL_STEP])}


def incompatibility(shapes: Mapping[str, Sequence[int]], variables: Mapping[str, tf.Variable]) -> str | None:
    """Returns a phrase for the first variable that does not fit a checkpoint, or None if all fit.

    Args:
      shapes: of the checkpoint's variables, by their names.
      variables: name in the checkpoint -> variable.
    """
    for name, variable in sorted(variables.items()):
        if name not in shapes:
            return f'has no {name}'
        if list(shapes[name]) != variable.shape.as_list():
            return f'has {name} of shape {list(shapes[name])} instead of {variable.shape.as_list()}'
    return None


def _values(prefix):
    opened = reader(prefix)
    return {name: opened.get_tensor(name) for name in opened.get_variable_to_shape_map()}
