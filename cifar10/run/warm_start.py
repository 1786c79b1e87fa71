"""A warm start: a new run takes the variables that fit from a checkpoint of another model.

It knows names, shapes and checkpoints, but no networks and no towers.
"""
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.directories import warn_of_others
from cifar10.base.errors import UsageError
from cifar10.model import averages
from cifar10.run import saved
from cifar10.run.train_dir import TrainDir

_MOST_NAMED = 4  # variables in a list


class WarmStart(NamedTuple):
    """What a run takes from another model.

    Attributes:
      prefix: that of the checkpoint, an absolute path.
      values: name of a variable -> the value that it starts with.
      misfits: the names of variables that have another shape there.
      missing: the names of variables that are not there.
      averaged: whether the values are moving averages of the other model's variables.
    """
    prefix: str
    values: dict[str, np.ndarray]
    misfits: list[str]
    missing: list[str]
    averaged: bool

    @property
    def sha256(self) -> str:
        """The `saved.digest_of` the values."""
        return saved.digest_of(self.values, self.values.__getitem__)

    def __str__(self):
        count = f'{len(self.values)} of {len(self.values) + len(self.misfits) + len(self.missing)}'
        text = f"{count} variables{', as moving averages,' * self.averaged} from {self.prefix}"
        if self.misfits:
            text += f'; of another shape there: {listed(self.misfits)}'
        if self.missing:
            text += f'; not there: {listed(self.missing)}'
        return text


def listed(names: Sequence[str]) -> str:
    """Returns a list of variables as text, shortened if it is long."""
    more = len(names) - _MOST_NAMED
    return ', '.join(names[:_MOST_NAMED]) + (f' and {more} more' if more > 0 else '')


def find(given: str) -> str:
    """Returns the absolute prefix of the checkpoint that the value of `--warm_start` names.

    Args:
      given: a prefix, or a directory with checkpoints, whose newest readable one is taken.

    Raises:
      UsageError: there is none, or it cannot be read.
    """
    warn_of_others(given if os.path.isdir(given) else os.path.dirname(given), f'--warm_start={given}')
    folders = 'the train_dir of a run, the folder best of an eval_dir, or '
    if not os.path.isdir(given):
        prefix = saved.named('warm_start', given, folders)
    elif (prefix := saved.newest(TrainDir(given))) is None:
        raise UsageError(f'--warm_start={given} holds no model.ckpt-<step> that can be read; give {folders}the prefix '
                         'of a checkpoint')
    return os.path.abspath(prefix)


def read(prefix: str, variables: Mapping[str, tf.Variable]) -> WarmStart:
    """Reads the variables that fit by name and shape from a checkpoint.

    Where the other model has moving averages, they are taken: they are the model that evaluation knows.

    Args:
      prefix: that of the checkpoint, which can be read.
      variables: those of the network, by their names.

    Raises:
      UsageError: none fits.
    """
    reader = tf.train.load_checkpoint(prefix)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    values, misfits, missing = {}, [], []
    averaged = False
    for name, variable in variables.items():
        source = next((source for source in (name + averages.SUFFIX, name) if source in shapes), None)
        if source is None:
            missing.append(name)
        elif shapes[source] != variable.shape.as_list() or not _converts(dtypes[source], variable.dtype.base_dtype):
            misfits.append(name)
        else:
            values[name] = reader.get_tensor(source).astype(variable.dtype.as_numpy_dtype)
            averaged |= source != name
    if not values:
        raise UsageError(f'--warm_start={prefix} has no variable of this network by name and shape, such as '
                         f'{_example(variables)}; give a checkpoint of a similar network')
    return WarmStart(prefix, values, misfits, missing, averaged)


def _converts(source, target):
    """Returns whether a value of one type may become one of another: of the same kind, floating or not."""
    return source == target or (source.is_floating and target.is_floating)


def _example(variables):
    return next((f'{name} {variable.shape.as_list()}' for name, variable in variables.items()), 'any')


def initialise(values: Mapping[str, np.ndarray]) -> tuple[tf.Operation, dict[tf.Tensor, np.ndarray]]:
    """Builds what gives all global variables of the current graph their first values.

    Args:
      values: those of a WarmStart; other variables start with their initial values. The moving average of a variable
        starts with the variable's value.

    Returns:
      (the operation, what it must be fed).
    """
    operation = tf.global_variables_initializer()
    # Not within the control dependencies: an assignment whose input already waits does not wait itself, and feeding
    # that input would cut the only path.
    placeholders = {name: tf.placeholder(value.dtype, value.shape) for name, value in values.items()}
    assigned = []
    with tf.control_dependencies([operation]):
        for variable in tf.global_variables():
            placeholder = placeholders.get(variable.op.name.removesuffix(averages.SUFFIX))
            if placeholder is not None:
                assigned.append(variable.assign(placeholder, read_value=False))
    return tf.group(operation, *assigned), {placeholder: values[name] for name, placeholder in placeholders.items()}
