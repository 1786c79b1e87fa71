"""A warm start: a new run takes from a checkpoint of another model the variables that fit by name and shape."""
import os
from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.directories import warn_of_others
from cifar10.base.errors import UsageError, listed
from cifar10.base.graphs import AVERAGE
from cifar10.run import saved
from cifar10.run.names import exists
from cifar10.run.train_dir import TrainDir


def find(given: str) -> str:
    """Returns the absolute prefix of the checkpoint that the value of `--warm_start` names.

    Args:
      given: a prefix, or a directory with checkpoints, whose newest readable one is taken.

    Raises:
      UsageError: there is none, or it cannot be read.
    """
    is_dir = os.path.isdir(given) and not exists(given)
    warn_of_others(given if is_dir else os.path.dirname(given), f'--warm_start={given}')
    folders = 'the train_dir of a run, the folder best in one, or '
    if not is_dir:
        prefix = saved.named('warm_start', given, folders)
    elif (prefix := saved.newest(TrainDir(given))) is None:
        others, missing = saved.others_in(TrainDir(given)), TrainDir(given).incomplete()
        problem = f'{missing}, or' if missing and not others else 'holds no model.ckpt-<step> that can be read;'
        example = f', such as {others[-1]}' if others else ''
        raise UsageError(f'--warm_start={given} {problem} give {folders}the prefix of a checkpoint{example}')
    return os.path.abspath(prefix)


def read(prefix: str, variables: Mapping[str, tf.Variable]) -> tuple[dict[str, np.ndarray], str]:
    """Reads the variables that fit by name and shape from a checkpoint.

    If the other model has moving averages, they are taken, because evaluation uses them.

    Args:
      prefix: of a readable checkpoint.
      variables: the network's variables, by their names.

    Returns:
      (name of a variable -> the value that it starts with, a phrase that says what was taken and what was not).

    Raises:
      UsageError: none fits, or one has a value that is not finite.
    """
    reader = saved.reader(prefix)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    values, misfits, mistyped, missing = {}, [], [], []
    averaged = False
    for name, variable in variables.items():
        source = next((source for source in (name + AVERAGE, name) if source in shapes), None)
        if source is None:
            missing.append(name)
            continue
        # A type may become another one of the same kind, floating or not.
        found, wanted = dtypes[source], variable.dtype.base_dtype
        converts = found == wanted or (found.is_floating and wanted.is_floating)
        if shapes[source] != variable.shape.as_list():
            misfits.append(name)
        elif not converts:
            mistyped.append(name)
        else:
            values[name] = reader.get_tensor(source).astype(variable.dtype.as_numpy_dtype)
            if not np.isfinite(values[name]).all():
                raise UsageError(f'--warm_start={prefix} has values of {name} that are not finite; give another '
                                 'checkpoint')
            averaged |= source != name
    if not values:
        example = next((f'{name} {variable.shape.as_list()}' for name, variable in variables.items()), 'any')
        raise UsageError(f'--warm_start={prefix} has no variable of this network by name and shape, such as {example}; '
                         'give a checkpoint of a similar network')
    text = f"{len(values)} of {len(variables)} variables{', as moving averages,' * averaged} from {prefix}"
    if mistyped:
        text += f'; of another type there: {listed(mistyped)}'
    if misfits:
        text += f'; of another shape there: {listed(misfits)}'
    if missing:
        text += f'; not there: {listed(missing)}'
    return values, text
