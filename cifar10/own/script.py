"""Towers for a user's script: runs its step function on several devices, within its own session and loop.

    train_op, loss = cifar10.on_towers(step, batches, ['/gpu:0', '/gpu:1'])
"""
import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import Line, say_all
from cifar10.base.errors import UsageError
from cifar10.base.graphs import has_old_shapes, usual_switches
from cifar10.base.own_files import executed, hash_of
from cifar10.base.registry import UPDATE_MODES
from cifar10.own import refusals
from cifar10.own.batches import examples_of
from cifar10.own.code import shapes, unchanged
from cifar10.own.computed import copied_tower
from cifar10.own.gradient_marks import marking
from cifar10.own.isolated_call import Tower, with_feeds
from cifar10.own.made_up import rehearse
from cifar10.own.model_towers import step_of
from cifar10.own.refusals import BrokenRule
from cifar10.own.tracing import renamed, trace
from cifar10.parallel.devices import Devices

_MODES = 'parameter_server', 'replicated'


def on_towers(step: Callable[[Any], tuple], batches: Sequence[Any], devices: Sequence[str],
              variable_update: str = 'parameter_server') -> tuple:
    """Builds a training step of K towers in the current graph: one for each batch.

    The step function is called in a separate graph. Each tower computes everything that depends on its batch. A
    gradient is averaged over the towers where it leaves `compute_gradients` or `tf.gradients`. The rest runs once, or
    with 'replicated' once on each device. Variables are created in the current graph, under their own names. A second
    step shares the variables of `tf.get_variable`. Notes on the step function are printed.

    Args:
      step: function (batch) -> (loss, train_op) or (loss, train_op, outputs). The loss is a scalar, the mean over the
        batch. If the train_op does not increment the global step, the returned operation does. Outputs are tensors
        in any structure.
      batches: K batches: tensors, `tf.SparseTensor`s, `tf.RaggedTensor`s, or dicts, lists or tuples of them, with the
        same types, shapes and number of examples in all.
      devices: device names, such as '/gpu:0'; if there are fewer than K, the towers on a device take turns.
      variable_update: 'parameter_server', one copy of the variables on the CPU, or 'replicated', a copy on each device.

    Returns:
      (the operation that takes a step, the mean of the towers' losses) and, if the step function returns outputs,
      the outputs: the mean of a scalar over the towers, and the rows of all towers for other tensors. Run
      `tf.global_variables_initializer()` or a Saver's restore first, and then `tf.local_variables_initializer()`:
      it gives all copies the same values. Run `tf.tables_initializer()` if the step uses lookup tables.

    Raises:
      UsageError: several towers cannot compute the step function correctly; the message gives the line.
    """
    _refuse_arguments(batches, devices, variable_update)
    if hasattr(step, '__code__'):  # for the lines in messages
        executed[step.__code__.co_filename] = hash_of(step.__code__.co_filename)
    generators = random.getstate(), np.random.get_state()
    make = functools.partial(_called, step, has_old_shapes(), generators)
    with _usage_errors(), usual_switches(), tf.device('/cpu:0'):
        global_step = _global_step()
        batches, equal = _tensors(batches)
        traced = _traced(make, _common(batches))
        groups = Devices(tuple((device,) for device in devices), 'gpu' in devices[0].lower(), num_towers=len(batches))
        mode = UPDATE_MODES.load(variable_update)(groups)
        shared, outputs = dict[str, Any](), []

        def tower(k, scope):
            with tf.control_dependencies(equal):
                computed, found = copied_tower(traced, batches[k], shared=shared)
            outputs.append(found.get('outputs'))
            return computed
        built = mode.build(tower, lambda: None, global_step)
        loss = tf.reduce_mean(tf.stack([scalars['total_loss'] for scalars in built.scalars]))
        result = tf.group(built.train_ops), loss
        if outputs[0] is None:
            return result
        return *result, tf.nest.map_structure(lambda *values: _joined(values), *outputs)


def _traced(make, batch):
    """Returns the Traced of a step function for the current graph; prints the notes on it."""
    seed = tf.get_default_graph().seed or 0
    traced = trace(make, batch, True, seed, entry=refusals.STEP)
    with unchanged():
        notes = [*traced.notes, *rehearse(make, batch, seed, refusals.STEP)]
    before, traced = traced.variables, renamed(traced, tf.get_default_graph())
    notes += refusals.notes_of_other_variables(before, traced.variables)
    say_all(Line('warning', f'the step function: {note}') for note in notes)
    return traced


def _refuse_arguments(batches, devices, variable_update):
    """Raises a UsageError if arguments of `on_towers` are malformed."""
    if variable_update not in _MODES:
        raise UsageError(f'variable_update={variable_update!r}; choose from: {", ".join(_MODES)}')
    for name, given, form in (
            ('batches', batches, 'with one batch per tower'), ('devices', devices, "such as ['/gpu:0']")):
        is_list = isinstance(given, (list, tuple))
        if not (is_list and given):
            raise UsageError(f"{name} is {'empty' if is_list else refusals.phrase(given)}; give a list {form}")
    if tf.executing_eagerly():
        raise UsageError('on_towers builds a graph; call tf.disable_v2_behavior() first')


def _tensors(batches):
    """Returns (the batches as tensors, the operations that compare unknown numbers of examples).

    Raises:
      UsageError: the batches differ in their number of examples.
      ValueError, TypeError: they differ in structure.
    """
    found, counts = [], []
    for batch in batches:
        tf.nest.assert_same_structure(batches[0], batch, expand_composites=True)
        leaves = [each if _is_composite(each) else tf.convert_to_tensor(each) for each in tf.nest.flatten(batch)]
        counts.append([_count(each) for each in leaves if _is_composite(each) or each.shape.rank != 0])
        found.append(tf.nest.pack_sequence_as(batch, leaves))
    equal = []
    for k in range(1, len(batches)):
        for first, other in zip(counts[0], counts[k]):
            if not (isinstance(first, int) and isinstance(other, int)):
                equal.append(tf.debugging.assert_equal(
                    first, other, message=f'batch {k} and batch 0 of on_towers differ in their number of examples'))
            elif first != other:
                raise UsageError(f'batch {k} has {other} examples, but batch 0 has {first}; give all batches the same '
                                 'number')
    return found, equal


def _common(batches):
    """Returns a batch of placeholders in a graph of its own; dimensions that differ between towers are None."""
    with tf.Graph().as_default():
        parts = [tf.placeholder(each[0].dtype, functools.reduce(
            lambda one, other: one.most_specific_compatible_shape(other), [tensor.shape for tensor in each]))
            for each in zip(*(tf.nest.flatten(batch, expand_composites=True) for batch in batches))]
        return tf.nest.pack_sequence_as(batches[0], parts, expand_composites=True)


def _is_composite(value):
    return isinstance(value, (tf.SparseTensor, tf.RaggedTensor))


def _count(value):
    """Returns the number of examples of a tensor of any kind: an int, or an int64 scalar if it is not static."""
    if not _is_composite(value) and value.shape.rank and value.shape[0] is not None:
        return value.shape[0]
    return examples_of(value)


def _called(step, old_shapes, generators, batch):
    """Calls a step function; returns the Tower.

    Each call draws the same numbers from the generators of Python and NumPy.
    """
    random.setstate(generators[0])
    np.random.set_state(generators[1])
    with marking(), shapes(old_shapes):
        found, feeds = with_feeds(step(batch))
    if not isinstance(found, (tuple, list)) or len(found) not in (2, 3):
        raise BrokenRule(f'it returns {refusals.phrase(found)}; return (loss, train_op) or (loss, train_op, outputs)')
    scalars, train_op = step_of(*found[:2])
    shown = dict(outputs=tf.nest.map_structure(tf.convert_to_tensor, found[2])) if len(found) == 3 else {}
    return Tower(scalars, train_op, shown, feeds)


def _joined(values):
    """Returns an output of all towers: the mean of scalars, the rows of other tensors."""
    if values[0].shape.rank != 0:
        return tf.concat(values, 0)
    return tf.reduce_mean(tf.stack([tf.cast(each, tf.float32) for each in values]))


def _global_step():
    """Returns the global step of the current graph; raises a BrokenRule if the script's variable is unsuitable."""
    try:
        step = tf.train.get_or_create_global_step()
    except (TypeError, ValueError):
        step = None
    if not hasattr(step, 'handle'):
        raise BrokenRule('the existing global step is not a resource variable; call tf.enable_resource_variables() '
                         'before tf.train.get_or_create_global_step()')
    return step


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
        raise UsageError(f'the step function uses {outer}, which belongs to a graph outside the function; pass it in '
                         'the batches, or create it in the function') from error
