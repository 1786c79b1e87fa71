"""Towers in a script of one's own: its step function on several devices, for its own session and loop.

    train_op, loss = cifar10.on_towers(step, batches, ['/gpu:0', '/gpu:1'])
"""
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError
from cifar10.base.graphs import has_old_shapes, usual_switches
from cifar10.base.own_files import executed, hash_of
from cifar10.base.registry import UPDATE_MODES
from cifar10.own.call import phrase, with_fed
from cifar10.own.code import BrokenRule, shapes
from cifar10.own.leaving import marking
from cifar10.own.model import AfterGradients, add_loss, forget, model_of
from cifar10.parallel.devices import Devices
from cifar10.parallel.towers import tower_loss

_MODES = 'parameter_server', 'replicated'


def on_towers(step: Callable[[Any], tuple], batches: Sequence[Any], devices: Sequence[str],
              variable_update: str = 'parameter_server') -> tuple[tf.Operation, tf.Tensor]:
    """Builds a training step of K towers in the current graph: one for each batch.

    The step function is called once, in a graph of its own. Each tower computes what depends on its batch; a gradient
    is averaged over the towers where it leaves `compute_gradients` or `tf.gradients`; what follows is done once, or
    with 'replicated' once on each device. Variables are made in the current graph, under their own names.

    Args:
      step: function (batch) -> (loss, train_op): a scalar, the mean over the batch, and what increments the global
        step, `tf.train.get_global_step()`, by 1.
      batches: K tensors, or dicts, lists or tuples of them, with the same types and shapes in all.
      devices: their names, such as '/gpu:0'; towers take turns where there are fewer than K.
      variable_update: 'parameter_server', one copy of the variables on the CPU, or 'replicated', one on each device.

    Returns:
      (the operation that takes a step, the mean of the towers' losses). Run `tf.global_variables_initializer()` or a
      Saver's restore first, and then `tf.local_variables_initializer()`: copies begin with the values of the others.

    Raises:
      UsageError: the step function has no right answer on several towers; the message has its line.
    """
    _refuse_arguments(batches, devices, variable_update)
    _note_file(step)
    groups = Devices(tuple((device,) for device in devices), 'gpu' in devices[0].lower(), num_towers=len(batches))
    mode = UPDATE_MODES.load(variable_update)(groups)
    called, known = functools.partial(_called, step, batches[0], has_old_shapes()), {}

    def tower(k, scope):
        inputs = {f'batch_{number}': tf.convert_to_tensor(each) for number, each in enumerate(
            tf.nest.flatten(batches[k]))}
        return dict(total_loss=tower_loss(scope, lambda: add_loss(called, inputs, known))[0])
    with _usage_errors(), usual_switches(), tf.device('/cpu:0'):
        global_step = _global_step()
        built = mode.build(tower, lambda: AfterGradients(_usage_errors), global_step)
        forget()
        loss = tf.reduce_mean(tf.stack([scalars['total_loss'] for scalars in built.scalars]))
    return tf.group(built.train_ops), loss


def _refuse_arguments(batches, devices, variable_update):
    """Raises a UsageError if arguments of `on_towers` are not of its form."""
    if variable_update not in _MODES:
        raise UsageError(f'variable_update={variable_update!r}; choose from: {", ".join(_MODES)}')
    for name, given, form in (('batches', batches, 'a batch for each tower'), ('devices', devices, "such as '/gpu:0'")):
        if not isinstance(given, (list, tuple)) or not given:
            raise UsageError(f'{name} is {phrase(given)}; give a list, {form}')
    if tf.executing_eagerly():
        raise UsageError('on_towers builds a graph; call tf.disable_v2_behavior() first')


def _global_step():
    """Returns the global step of the current graph; raises a BrokenRule if a script has made another kind of it."""
    try:
        step = tf.train.get_or_create_global_step()
    except (TypeError, ValueError):
        step = None
    if not hasattr(step, 'handle'):
        raise BrokenRule('the global step exists, and is no resource variable; call tf.enable_resource_variables(), '
                         'and then make it by tf.train.get_or_create_global_step()')
    return step


def _note_file(step):
    """Notes the file of a step function, for the lines in messages."""
    if hasattr(step, '__code__'):
        executed[step.__code__.co_filename] = hash_of(step.__code__.co_filename)


def _called(step, batch, old_shapes, *tensors):
    """Calls a step function on tensors that have the structure of a batch; returns a Model."""
    with marking(), shapes(old_shapes):
        found, fed = with_fed(step(tf.nest.pack_sequence_as(batch, tensors)))
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise BrokenRule('it returns something else; return (loss, train_op)')
    return (model_of(*found), fed) if fed else model_of(*found)


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except BrokenRule as rule:
        raise UsageError(f'the step function: {rule}') from rule
    except ValueError as error:
        if 'must be from the same graph' not in str(error):
            raise
        outer = str(error).partition(' must be')[0]
        raise UsageError(f'the step function uses {outer}, which is made outside of it; hand it over in the batches, '
                         'which may be dicts or tuples, or make it in the function') from error
