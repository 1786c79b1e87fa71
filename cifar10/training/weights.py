"""Reads another program's weights from FILE.npz, and matches its arrays to a network's variables."""
import os
import re
import zipfile
from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import Line
from cifar10.base.errors import UsageError, listed, reason
from cifar10.run.checkpoints import Saved

SUFFIX = '.npz'
_OTHER_FORMATS = ('.h5', '.hdf5', '.keras', '.pt', '.pth', '.bin', '.safetensors', '.onnx', '.pb', '.tflite', '.npy',
                  '.pkl', 'SavedModel')


def refuse_other_formats(given: str) -> None:
    """Raises a UsageError if the value of `--warm_start` names weights in an unsupported format."""
    name = os.path.splitext(given)[1].lower() if not os.path.isdir(given) else (
        'SavedModel' if os.path.isfile(os.path.join(given, 'saved_model.pb')) else '')
    if name in _OTHER_FORMATS:
        raise UsageError(f'--warm_start={given}: the format {name} is not supported; convert it to FILE.npz with '
                         'the lines in docs/weights.md')


def named_as(variables: Mapping[str, tf.Variable], given: str) -> tuple[Saved, list[Line]]:
    """Returns the weights in a file under a network's variable names, and lines about the match.

    Arrays match variables by name. If the arrays and the variables have the same shapes in the same order, arrays
    with other names match in that order.

    Args:
      variables: the network's variables, by name, in creation order.
    """
    # Scalars count steps.
    arrays = {name: value for name, value in _read(given).items() if value.dtype.kind == 'f' and value.ndim}
    names = [name for name, variable in variables.items() if variable.shape.rank]
    pairs = {ours: theirs for theirs in arrays if (ours := theirs.removesuffix(':0').replace('.', '/')) in names}
    lines = []
    if [variables[name].shape.as_list() for name in names] == [list(value.shape) for value in arrays.values()]:
        in_order = dict(zip(names, arrays))
        if pairs.items() < in_order.items():  # the order does not contradict a name
            renamed = [f'{ours} from {theirs}' for ours, theirs in in_order.items() if ours not in pairs]
            lines.append(Line('warm start', f'in order: {listed(renamed)}'))
            pairs = in_order
    if not pairs:
        raise UsageError(
            f'--warm_start={given}: its arrays ({listed([*arrays])}) match the variables of the network '
            f'({listed(names)}) neither by name nor by order; rename the arrays (docs/weights.md)')
    if unused := [name for name in arrays if name not in pairs.values()]:
        lines.append(Line('warm start', f'not used: {listed(unused)}'))
    return Saved(given, {ours: arrays[theirs] for ours, theirs in pairs.items()}), lines


def _read(path):
    """Returns the arrays by name, in the order of the file."""
    remedy = 'give a file that numpy.savez has written'
    if not os.path.isfile(path):
        raise UsageError(f'--warm_start={path} is not a file; {remedy}')
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError('not an .npz file')
        with np.load(path, allow_pickle=False) as file:  # a pickle may run any code
            names = list(file)
            if names == sorted(names):  # arr_10 before arr_2
                names.sort(key=lambda name: [int(part) if part.isdigit() else part
                                             for part in re.split(r'(\d+)', name)])
            return {name: file[name] for name in names}
    except Exception as error:  # any type: the readers raise errors of all kinds
        raise UsageError(f'--warm_start={path} cannot be read ({reason(error)}); {remedy}') from error
