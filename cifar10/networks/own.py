"""A user's own network: a function of a Python file, held to the rules that towers need.

    def network(images, num_classes, training):  # plain graph code
        ...
        return logits

It knows only that each tower calls the function again, over the same variables.
"""
import functools
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from cifar10.errors import UsageError
from cifar10.networks import NUM_CLASSES, Network


def network(name: str) -> Network:
    """Returns the network that 'FILE.py:FUNCTION' names.

    Raises:
      UsageError: there is no such file or function, or it cannot be imported.
    """
    path, _, attribute = name.rpartition(':')
    if not os.path.isfile(path):
        raise UsageError(f'--network={name}: there is no file {path}; give --network=FILE.py:FUNCTION with its '
                         'place')
    function = _function(name, path, attribute)
    return Network(lambda *arguments, **options: _inference(name, function, *arguments, **options))


@functools.cache  # a file may have side effects
def _function(name, path, attribute):
    spec = importlib.util.spec_from_file_location('own_network', path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where dataclasses look for it
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.append(folder)  # for what the file imports from beside it
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # of any type: it is the user's code
        raise UsageError(f'--network={name} cannot be imported: {_where(error, path)}') from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UsageError(f'--network={name}: {path} has no function {attribute}')
    return function


def _inference(name: str, function: Callable, images: tf.Tensor, devices: Sequence[str] = ('',),
               training: bool = False, num_classes: int = NUM_CLASSES) -> tf.Tensor:
    """Builds the user's network and checks what it did; as `Network.inference`, raising UsageErrors."""
    with tf.device(devices[0]):
        try:
            logits = function(images, num_classes, training)
        except UsageError:
            raise
        except Exception as error:  # of any type: it is the user's code
            raise UsageError(f'--network={name}: {_where(error, name.rpartition(":")[0])}') from error
        found = _broken_rule(images, logits, num_classes)
        if found:
            raise UsageError(f'--network={name}: {found}')
        return tf.cast(logits, tf.float32)


def _broken_rule(images, logits, num_classes):
    """Returns what is wrong with what a network made, with the remedy, or None."""
    shape = logits.shape.as_list() if isinstance(logits, tf.Tensor) and logits.shape.rank is not None else None
    if (shape is None or len(shape) != 2 or shape[1] != num_classes or not logits.dtype.is_floating
            or not logits.shape[:1].is_compatible_with(images.shape[:1])):
        returned = f'a tensor {logits.dtype.name} {shape}' if isinstance(logits, tf.Tensor) else type(logits).__name__
        return f'it returns {returned}; return logits, float [images, {num_classes}]'
    # Tower scopes are name scopes, which `get_variable` ignores and all other variables carry.
    scope = tf.get_default_graph().get_name_scope()
    outside = [v.op.name for v in tf.global_variables() + tf.local_variables() + tf.trainable_variables()
               if scope and v.op.name.startswith(scope + '/')]
    if outside:
        return (f'the variable {outside[0].removeprefix(scope + "/")} was not made with tf.get_variable, so each tower '
                'would have its own; use tf.get_variable')
    odd = [v.op.name for v in tf.trainable_variables() if v.dtype.base_dtype != tf.float32]
    if odd:
        return f'the variable {odd[0]} is not float32, in which a run keeps its variables; cast its value instead'
    if not _depends_on_variables(logits.op):
        return 'its logits depend on no variable; make some with tf.get_variable, and use them'
    for collection, remedy in ((tf.GraphKeys.REGULARIZATION_LOSSES, 'add losses to the collection tf.GraphKeys.LOSSES, '
                                'in every tower'),
                               (tf.GraphKeys.UPDATE_OPS, 'use cifar10.networks.normalisation.batch_normalisation')):
        if tf.get_collection(collection):
            return f'it fills the collection {collection}, which towers do not share; {remedy}'
    return None


def _depends_on_variables(operation):
    """Returns whether an operation computes with a variable."""
    seen, waiting = set(), [operation]
    while waiting:
        each = waiting.pop()
        if each.type in ('VarHandleOp', 'VariableV2'):
            return True
        if each not in seen:
            seen.add(each)
            waiting += [tensor.op for tensor in each.inputs]
    return False


def _where(error, path):
    """Returns an error of the user's code in a line, with the line of their file that it comes from."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if os.path.abspath(frame.filename) == os.path.abspath(path)]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    text = ' '.join(str(error).split()) or 'no message'
    return f'{type(error).__name__}: {text}' + (f' (line {lines[-1]} of {path})' if lines else '')
