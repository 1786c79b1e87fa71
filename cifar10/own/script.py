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
from cifar10.base.errors import UsageError, reason
from cifar10.base.graphs import has_old_shapes, usual_switches
from cifar10.base.own_files import executed, hash_of
from cifar10.base.registry import UPDATE_MODES
from cifar10.own import refusals, rehearsal
from cifar10.own.batches import examples_of, rows_of
from cifar10.own.code import shapes, unchanged
from cifar10.own.computed import copied_tower
from cifar10.own.gradient_marks import marking
from cifar10.own.isolated_call import Tower, with_feeds
from cifar10.own.recipe_towers import step_of
from cifar10.own.refusals import BrokenRule
from cifar10.own.tracing import renamed, trace
from cifar10.parallel.devices import Devices

_MODES = 'parameter_server', 'replicated'
_PIXELS = 2 ** 14 * 3  # the maximum of numbers in a tower's batch of a rehearsal
_UNKNOWN = 4  # the size of an unknown dimension in a rehearsal


def on_towers(step: Callable[[Any], tuple], batches: Sequence[Any], devices: Sequence[str],
              variable_update: str = 'parameter_server') -> tuple:
    """Builds a training step of K towers in the current graph: one for each batch.

    The step function is called in a separate graph. Each tower computes everything that depends on its batch. A
    gradient is averaged over the towers where it leaves `compute_gradients` or `tf.gradients`. The rest runs once, or
    with 'replicated' once on each device. Variables are created in the current graph, under their own names. A second
    step shares the variables of `tf.get_variable`. Notes on the step function are printed.

    Args:
      step: function (batch) -> (loss, train_op) or (loss, train_op, outputs). The loss is a scalar, the mean over the
        batch. If the train_op does not increment the global step, it is counted for it. Outputs are tensors in any
        structure.
      batches: K batches: tensors, `tf.SparseTensor`s, `tf.RaggedTensor`s, or dicts, lists or tuples of them, with the
        same types, shapes and number of examples in all.
      devices: their names, such as '/gpu:0'; towers take turns if there are fewer than K.
      variable_update: 'parameter_server', one copy of the variables on the CPU, or 'replicated', one on each device.

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
        inputs, equal = _inputs(batches)
        traced = _traced(make, batches[0], inputs)
        groups = Devices(tuple((device,) for device in devices), 'gpu' in devices[0].lower(), num_towers=len(batches))
        mode = UPDATE_MODES.load(variable_update)(groups)
        shared, outputs = dict[str, Any](), []

        def tower(k, scope):
            with tf.control_dependencies(equal):
                computed, copied = copied_tower(traced, inputs[k], shared=shared)
            outputs.append(copied.outputs.get('outputs'))
            return computed
        built = mode.build(tower, lambda: None, global_step)
        loss = tf.reduce_mean(tf.stack([scalars['total_loss'] for scalars in built.scalars]))
        result = tf.group(built.train_ops), loss
        if outputs[0] is None:
            return result
        return *result, tf.nest.map_structure(lambda *values: _joined(values), *outputs)


def _traced(make, batch, inputs):
    """Returns the Traced of a step function for the current graph; prints the notes on it."""
    seed = tf.get_default_graph().seed or 0
    types = {name: (each.dtype, _common_shape(name, inputs)) for name, each in inputs[0].items()}
    traced = trace(functools.partial(make, batch), types, True, seed, entry=refusals.STEP)
    with unchanged():
        notes = [*traced.notes, *rehearsed(make, batch, seed, refusals.STEP)]
    before, traced = traced.variables, renamed(traced, tf.get_default_graph())
    notes += refusals.notes_of_other_variables(before, traced.variables)
    say_all(Line('warning', f'the step function: {note}') for note in notes)
    return traced


def _refuse_arguments(batches, devices, variable_update):
    """Raises a UsageError if arguments of `on_towers` are malformed."""
    if variable_update not in _MODES:
        raise UsageError(f'variable_update={variable_update!r}; choose from: {", ".join(_MODES)}')
    for name, given, form in (('batches', batches, 'a batch for each tower'), ('devices', devices, "such as '/gpu:0'")):
        if not isinstance(given, (list, tuple)) or not given:
            raise UsageError(f'{name} is {refusals.phrase(given)}; give a list, {form}')
    if tf.executing_eagerly():
        raise UsageError('on_towers builds a graph; call tf.disable_v2_behavior() first')


def _inputs(batches):
    """Returns (a dict of tensors by name for each batch, the operations that compare unknown numbers of examples).

    Raises:
      UsageError: the batches differ in their number of examples.
      ValueError, TypeError: they differ in structure.
    """
    found, counts = [], []
    for batch in batches:
        tf.nest.assert_same_structure(batches[0], batch, expand_composites=True)
        leaves = [each if _is_composite(each) else tf.convert_to_tensor(each) for each in tf.nest.flatten(batch)]
        counts.append([_count(each) for each in leaves if _is_composite(each) or each.shape.rank != 0])
        found.append(tensors_of(leaves))
    equal = []
    for k in range(1, len(batches)):
        for first, other in zip(counts[0], counts[k]):
            if not (isinstance(first, int) and isinstance(other, int)):
                equal.append(tf.debugging.assert_equal(
                    first, other, message=f'batch {k} and batch 0 of on_towers differ in their number of examples'))
            elif first != other:
                raise UsageError(f'batch {k} has {other} examples, but batch 0 has {first}; give all towers the '
                                 'same number, because each has the same weight in the mean')
    return found, equal


def tensors_of(batch: Any) -> dict[str, tf.Tensor]:
    """Returns the tensors of a batch of any structure by name, including the parts of sparse and ragged tensors."""
    return {f'batch_{number}': each for number, each in enumerate(tf.nest.flatten(batch, expand_composites=True))}


def _is_composite(value):
    return isinstance(value, (tf.SparseTensor, tf.RaggedTensor))


def _count(value):
    """Returns the number of examples of a tensor of any kind: an int, or an int64 scalar if it is not static."""
    if not _is_composite(value) and value.shape.rank and value.shape[0] is not None:
        return value.shape[0]
    return examples_of(value)


def _common_shape(name, inputs):
    """Returns the shape of an input; dimensions that differ between towers are None."""
    return functools.reduce(lambda one, other: one.most_specific_compatible_shape(other),
                            [each[name].shape for each in inputs])


def _called(step, old_shapes, generators, batch, *tensors):
    """Calls a step function on tensors in the structure of a batch; returns the Tower.

    Each call draws the same numbers from the generators of Python and NumPy.
    """
    random.setstate(generators[0])
    np.random.set_state(generators[1])
    with marking(), shapes(old_shapes):
        found, feeds = with_feeds(step(tf.nest.pack_sequence_as(batch, tensors, expand_composites=True)))
    if not isinstance(found, (tuple, list)) or len(found) not in (2, 3):
        raise BrokenRule('it returns something else; return (loss, train_op) or (loss, train_op, outputs)')
    scalars, train_op = step_of(*found[:2])
    shown = dict(outputs=tf.nest.map_structure(tf.convert_to_tensor, found[2])) if len(found) == 3 else {}
    return Tower(scalars, train_op, shown, feeds)


def _joined(values):
    """Returns an output of all towers: the mean of scalars, the rows of other tensors."""
    if values[0].shape.rank != 0:
        return tf.concat(values, 0)
    return tf.reduce_mean(tf.stack([tf.cast(each, tf.float32) for each in values]))


def rehearsed(make: Callable[..., Tower], batch: Any, seed: int, entry: str,
              real: Sequence[np.ndarray] = ()) -> list[str]:
    """Rehearses a tower on made-up batches with a row of numbers per example; returns notes.

    Args:
      make: function (batch, the tensors of the batch) -> the Tower.
      batch: a batch for its structure, types and shapes; its tensors are not used.
      entry: as `trace` takes it.
      real: the rows of a real batch to draw from, as `rows_of` returns them for each part of the batch.

    Raises:
      BrokenRule: several towers cannot compute the right answer.
    """
    rows = [rows_of(each) for each in tf.nest.flatten(batch)]
    if any(each.shape.rank == 0 and each.dtype.is_floating for each in rows):
        return ['its batch has a scalar, which may follow the number of towers, so these were not compared with one '
                'tower']
    sizes = [each.shape[1:].num_elements() or 1 for each in rows if each.shape.rank]
    counts = [each.shape[0] for each in rows if each.shape.rank and each.shape[0]]
    few = max(min([*counts, 8, _PIXELS // max(sizes, default=1)]), 1)

    def called(*tensors):
        made = [_made_of(leaf, each) for leaf, each in zip(tf.nest.flatten(batch), tensors)]
        made = tf.nest.pack_sequence_as(batch, made)
        return make(made, *tf.nest.flatten(made, expand_composites=True))

    def traced(count, seed_of_it):
        types = {f'batch_{number}': (each.dtype, [count, *each.shape[1:]] if each.shape.rank else each.shape)
                 for number, each in enumerate(rows)}
        return trace(called, types, True, seed if seed_of_it is None else seed_of_it, entry=entry)
    try:
        return rehearsal.compare(rehearsal.Subject(traced, functools.partial(_made_up, real), few, seed, False))
    except BrokenRule:
        raise
    except Exception as error:  # it needs the number of examples of its batches, for example
        return [f'another call of it, for {few} examples, fails ({reason(error)}), so its towers were not compared '
                'with one tower; write -1 or tf.shape(x)[0] for the number of examples, and keep no tensors from call '
                'to call']


def _made_of(leaf, rows):
    """Returns a made-up tensor like a tensor of the batch; a sparse or ragged tensor has one value per example."""
    count = rows.shape[0] if rows.shape.rank else 0
    if isinstance(leaf, tf.SparseTensor):
        sizes = [size or _UNKNOWN for size in leaf.shape[1:]] if leaf.shape.rank else [_UNKNOWN]
        indices = np.pad(np.arange(count)[:, None], [(0, 0), (0, len(sizes))])
        return tf.SparseTensor(tf.constant(indices, tf.int64), rows, [count, *sizes])
    for _ in range(leaf.ragged_rank if isinstance(leaf, tf.RaggedTensor) else 0):
        rows = tf.RaggedTensor.from_row_splits(rows, tf.range(count + 1, dtype=leaf.row_splits.dtype))
    return rows


def _made_up(real, random, count, inputs):
    """Returns a batch of real rows if there are any, or made-up rows, where integers and booleans are 0 or 1."""
    drawn = random.random(count)
    offsets = np.sort(random.standard_normal(count))
    batch = {}
    for name, tensor in inputs.items():
        shape = [count, *(each or _UNKNOWN for each in tensor.shape[1:])] if tensor.shape.rank else []
        if tensor.dtype == tf.string:
            batch[name] = np.full(shape, b'')
        elif tensor.dtype.is_floating:
            values = random.standard_normal(shape) + offsets.reshape([count] + [1] * (len(shape) - 1))
            batch[name] = values.astype(tensor.dtype.as_numpy_dtype)
        else:
            order = (np.arange(count) + 0.5).reshape([count] + [1] * (len(shape) - 1)) / count if shape else 0
            batch[name] = (0.4 * order + 0.6 * random.random(shape) > 0.5).astype(tensor.dtype.as_numpy_dtype)
    for (name, value), rows in zip(batch.items(), real):
        if value.ndim and len(rows):
            batch[name] = rows[(drawn * len(rows)).astype(int)]
    return batch


def _global_step():
    """Returns the global step of the current graph; raises a BrokenRule if the script's variable is unsuitable."""
    try:
        step = tf.train.get_or_create_global_step()
    except (TypeError, ValueError):
        step = None
    if not hasattr(step, 'handle'):
        raise BrokenRule('the global step exists, and is no resource variable; call tf.enable_resource_variables(), '
                         'and then make it by tf.train.get_or_create_global_step()')
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
        raise UsageError(f'the step function uses {outer}, which is made outside of it; hand it over in the batches, '
                         'which may be dicts or tuples, or make it in the function, as variables') from error
