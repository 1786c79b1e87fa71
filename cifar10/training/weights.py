"""Weights that another program has saved, in FILE.npz or FILE.weights.h5, and which variables of a network they are.

Whole layers are matched: by name or, where names differ, by order and shape. What cannot be decided is refused.
"""
import collections
import operator
import os
import re
import zipfile
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import Line
from cifar10.base.directories import warn_of_others
from cifar10.base.errors import UsageError, listed, reason
from cifar10.run.saved import Saved

SUFFIXES = ('.npz', '.weights.h5')
_PAGE = 'docs/weights.md'
_BY_KERAS = f"load the model in Keras, and save model.save_weights('x.weights.h5'), as in {_PAGE}"
_BY_OTHERS = f'convert it to FILE.npz with the lines in {_PAGE}'
# What to do with the formats that are not read.
_REMEDIES = {**dict.fromkeys(('.h5', '.hdf5', '.keras'), _BY_KERAS), **dict.fromkeys((
    '.pt', '.pth', '.bin', '.safetensors', '.onnx', '.pb', '.tflite', '.npy', '.pkl', 'SavedModel'), _BY_OTHERS)}
_NORMALISATION = ('gamma', 'beta', 'moving_mean', 'moving_variance')  # in Keras' order
# The kinds of numbered vectors, by whether there are kernels, too, and the number of the vectors.
_OF_KERAS = {(True, 1): ('bias',), (False, 2): _NORMALISATION[:2], (False, 3): _NORMALISATION[1:],
             (False, 4): _NORMALISATION}
_KINDS = dict(weight='kernel', weights='kernel', w='kernel', b='bias', biases='bias', scale='gamma', offset='beta',
              running_mean='moving_mean', running_var='moving_variance')


class _Layer(NamedTuple):
    """Arrays that belong together: kernels and their bias, or what a normalisation has.

    Attributes:
      scope: the name of the layer.
      names: the names of its arrays by their kinds, such as {'beta': 'norm/offset:0'}; kernels are numbered.
      shapes: of the arrays.
      group: layers of a file that have the same group are in the order in which the model has them.
    """
    scope: str
    names: dict[str, str]
    shapes: tuple[tuple[int, ...], ...]
    group: str | None

    @property
    def form(self):
        """What layers have in common if one may stand for the other."""
        return frozenset(zip(self.names, self.shapes))


def refuse_other_formats(given: str) -> None:
    """Raises a UsageError if the value of `--warm_start` names weights in a format that is not read."""
    name = os.path.splitext(given)[1].lower() if not os.path.isdir(given) else (
        'SavedModel' if os.path.isfile(os.path.join(given, 'saved_model.pb')) else '')
    if name in _REMEDIES and not given.endswith(SUFFIXES):
        raise UsageError(f'--warm_start={given}: the format {name} is not read; {_REMEDIES[name]}')


def named_as(variables: Mapping[str, tf.Variable], given: str) -> tuple[Saved, list[Line]]:
    """Returns the weights in a file under the names that a network has for them, and lines for what is not by name.

    Args:
      variables: the network's variables, by their names, in the order in which it makes them.
      given: the value of `--warm_start`, which ends in one of SUFFIXES.

    Raises:
      UsageError: the file cannot be read, or it cannot be decided which layer of the network is which of the file.
    """
    values, groups = _read(given)
    theirs = _layers({name: value.shape for name, value in values.items() if value.dtype.kind == 'f'}, groups)
    ours = _layers({name: variable.shape.as_list() for name, variable in variables.items()}, {})
    found, lines, unused = dict(values), [], [name for layer in theirs for name in layer.names.values()]
    for i, j in sorted(_pairs(theirs, ours, given).items()):
        here, there = ours[i], theirs[j]
        taken = {here.names[kind]: there.names[kind] for kind in here.names if kind in there.names}
        found |= {name: values[source] for name, source in taken.items()}
        unused = [name for name in unused if name not in taken.values()]
        if here.scope != there.scope:
            lines.append(Line('warm start', f'{here.scope} from {there.scope}, {list(here.shapes[0])}: '
                                            f"{', '.join(map(os.path.basename, taken))}"))
    if unused:
        lines.append(Line('warm start', f'not used: {listed(unused)}'))
    return Saved(os.path.abspath(given), found), lines


def _read(path):
    """Returns (arrays by their names in the order of the file, {scope: its group} where there are several)."""
    remedy = "give a file that numpy.savez or Keras' save_weights has written"
    if not os.path.isfile(path):
        raise UsageError(f'--warm_start={path} is not a file; {remedy}')
    warn_of_others(os.path.dirname(path), f'--warm_start={path}')
    try:
        if not path.endswith('.npz'):
            return _of_keras(path)
        if not zipfile.is_zipfile(path):
            raise ValueError('not an .npz file')
        with np.load(path, allow_pickle=False) as file:  # a pickle may run any code
            names = list(file)
            if names == sorted(names):  # by somebody who had no other order; but there may be numbers in the names
                names.sort(key=_natural)
            return {name: file[name] for name in names}, {}
    except Exception as error:  # of any type: the readers raise errors of all kinds
        raise UsageError(f'--warm_start={path} cannot be read ({reason(error)}); {remedy}') from error


def _of_keras(path):
    import h5py  # which TensorFlow brings
    names, scopes, groups = [], {}, {}
    with h5py.File(path, 'r') as file:
        if 'layer_names' in file.attrs:  # of Keras 2, in the order of the model
            layers = [file[layer] for layer in map(_text, file.attrs['layer_names'])]
            values = {name: layer[name][()] for layer in layers for name in map(_text, layer.attrs['weight_names'])}
            return values, groups
        file.visit(names.append)
        # Such as layers/conv2d_1/vars/0: of the second Conv2D the first array.
        names = [name for name in sorted(names, key=_natural)
                 if re.fullmatch(r'(?!optimizer/|metrics/)(.*/)?vars/\d+', name)]
        for folder in map(os.path.dirname, names):
            scopes[folder] = re.sub(r'(^|/)(layers|_layer_checkpoint_dependencies|vars)(?=/|$)', '', folder).strip('/')
        for folder, scope in scopes.items():
            group = re.sub(r'_\d+(?=/|$)', '', scope)
            kind = os.path.basename(group)
            name = file[folder].attrs.get('name', kind)
            given = os.path.join(os.path.dirname(scope), name)
            # Other names count the models of a process, too.
            is_own = re.search(r'layers/[^/]+/vars$', folder) and not re.fullmatch(rf'{re.escape(kind)}(_\d+)?', name)
            if is_own and given not in scopes.values():
                scopes[folder] = given
            groups[scopes[folder]] = group
        pairs = map(os.path.split, names)
        return {f'{scopes[folder]}/{number}': file[folder][number][()] for folder, number in pairs}, groups


def _text(name):
    return name.decode() if isinstance(name, bytes) else name


def _natural(name):
    """Returns a key that sorts the numbers in names by their values: conv2d, conv2d_2, conv2d_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r'(\d+)', name)]


def _layers(shapes, groups):
    """Returns the layers that arrays make, in the order of their first arrays.

    Scalars, and what optimizers and moving averages keep of an array, belong to no layer.

    Args:
      shapes: by the names of the arrays: conv1/weights, layer1.conv1.bias, norm/beta:0, or dense/0 where only the order
        is known.
      groups: those of the layers that have one, by their scopes.
    """
    scopes, found = {}, []
    for name, shape in shapes.items():
        scope, _, last = re.sub(r'\.|__', '/', name.removesuffix(':0')).rpartition('/')
        if len(shape) and os.path.dirname(name) not in shapes:
            scopes.setdefault(scope, {})[name] = _KINDS.get(last, last)
    for scope, kinds in scopes.items():
        kernels = [name for name in kinds if len(shapes[name]) > 1]
        vectors = {name: kind for name, kind in kinds.items() if name not in kernels}
        if all(kind.isdigit() for kind in vectors.values()):
            vectors = dict(zip(vectors, _OF_KERAS.get((bool(kernels), len(vectors)), vectors.values())))
        elif not kernels:  # a normalisation of PyTorch has names that a kernel has
            vectors = {name: dict(kernel='gamma', bias='beta').get(kind, kind) for name, kind in vectors.items()}
        by_kind = {kind: name for name, kind in vectors.items()}
        with_kernels = {str(i): name for i, name in enumerate(kernels)}
        if 'bias' in by_kind:  # of kernels
            with_kernels['bias'] = by_kind.pop('bias')
        found += [_Layer(scope, names, tuple(tuple(shapes[name]) for name in names.values()), groups.get(scope))
                  for names in (with_kernels, by_kind) if names]
    return found


def _pairs(theirs, ours, given):
    """Returns which layer of a file each layer of a network is: {its number in `ours`: the other's in `theirs`}."""
    pairs = {}
    for is_same in (operator.eq, _ends_alike):
        alike = [(i, j) for i, our in enumerate(ours) for j, their in enumerate(theirs)
                 if i not in pairs and j not in pairs.values() and is_same(our.scope, their.scope)
                 and our.names.keys() & their.names.keys()]
        of_ours, of_theirs = (collections.Counter(pair[side] for pair in alike) for side in (0, 1))
        pairs |= {i: j for i, j in alike if of_ours[i] == of_theirs[j] == 1}
    for group in dict.fromkeys(their.group for their in theirs):
        elsewhere = {j for j in pairs.values() if theirs[j].group != group}
        here = {i: our.form for i, our in enumerate(ours) if pairs.get(i) not in elsewhere}
        there = {j: their.form for j, their in enumerate(theirs) if j not in elsewhere}
        shared = {theirs[j].form for j in there if theirs[j].group == group} & {*here.values()}
        here, there = ({k: form for k, form in side.items() if form in shared} for side in (here, there))
        if here.keys() <= pairs.keys() or all(theirs[j].group != group for j in there.keys() - {*pairs.values()}):
            continue  # there is nothing to find
        if len(there) == len(shared):  # each form is there once, so the order does not matter
            there = {j: form for form in here.values() for j in there if there[j] == form}
        found = dict(zip(here, there))
        by_name = {(i, j) for i, j in pairs.items() if i in here or j in there}
        if ([*here.values()] != [*there.values()] or not by_name <= found.items()
                or any(theirs[j].group != group for j in there)):
            raise UsageError(f'--warm_start={given}: neither names nor order tell which layer is which: '
                             f'{listed([theirs[j].scope for j in there])} there, '
                             f'{listed([ours[i].scope for i in here])} here; give the arrays the names that the '
                             f'network has for them ({_PAGE})')
        pairs |= found
    return pairs


def _ends_alike(one, other):
    return bool(one and other) and (f'/{one}'.endswith(f'/{other}') or f'/{other}'.endswith(f'/{one}'))
