"""Shared functions of the checkers in graph mode: devices, a session, and an inspection of the graph.

This module imports TensorFlow. A checker calls the reader's function with `call_once` in a new graph
(`with tf.Graph()...`).
"""
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from cifar10.base import startup
from lessons.checkers import Fault, call_once, counted, mismatch, shortened, shown

with startup.quiet_stderr():
    import tensorflow.compat.v1 as tf

tf.logging.set_verbosity(tf.logging.FATAL)  # the reader's code may use deprecated functions

WAIT_MS = 4000  # time limit of a step; a step that takes longer counts as stuck
_READS = ('ReadVariableOp', 'ResourceGather')
_UPDATES = ('Assign', 'ResourceApply', 'ResourceSparseApply', 'ResourceScatter')
_ARITHMETIC = {'Add', 'AddN', 'AddV2', 'Div', 'MatMul', 'Mean', 'Mul', 'Neg', 'Pow', 'RealDiv', 'Square',
               'SquaredDifference', 'Sub', 'Sum', 'L2Loss'}

# Hints; __init__.py describes their form. STEP_HINTS are for functions that return losses and an update.
DEVICE_HINT = (r'is on (/|no device)', 'create each operation inside the `tf.device` block of its device.')
STEP_HINTS = [
    ('nothing orders', 'update each weight once, with the mean of the K gradients. Then every read that a gradient '
     'depends on comes before the update. Compute the loss from the same read.'),
    DEVICE_HINT,
    (r'updated .* is 1\.2; 0\.6 is right', 'this is K times the step: divide the sum of the K gradients by K.'),
    ('the loss of tower', 'tower k has the numbers x[k * N // K:(k + 1) * N // K]. Its loss is the mean over these '
     'numbers, for the weight before the update.')]


def devices_of(count: int) -> list[str]:
    """Returns the names of the first `count` CPU devices of `session`."""
    return [f'/cpu:{k}' for k in range(count)]


@contextlib.contextmanager
def session(num_devices: int) -> Iterator[Callable]:
    """Opens a session of the default graph, initialises its variables, and gives a function run(fetches, feeds).

    The function returns the fetched values. It raises a Fault if a step fails or waits for ever.
    """
    config = tf.ConfigProto(device_count={'CPU': num_devices, 'GPU': 0}, inter_op_parallelism_threads=4)
    config.graph_options.rewrite_options.disable_meta_optimizer = True  # it costs more than these small graphs

    def run(fetches, feeds=None):
        try:
            return opened.run(fetches, feeds, options=tf.RunOptions(timeout_in_ms=WAIT_MS))
        except tf.errors.DeadlineExceededError as error:
            raise Fault('the step does not end: one of its operations waits for another that never runs') from error
        except (tf.errors.OpError, TypeError, ValueError) as error:
            raise Fault(f'the step raises {type(error).__name__}: {str(error).splitlines()[0]}') from error

    with tf.Session(config=config) as opened:
        run(tf.global_variables_initializer())
        yield run


def losses_and_update(returned: Any, count: int) -> tuple[list, Any]:
    """Returns the K losses and the update from a function's result; raises a Fault for a wrong form."""
    right = f'a pair (losses, update) is right: a list of {counted(count, "loss", "losses")}, and one operation'
    if not isinstance(returned, (tuple, list)) or len(returned) != 2 or not isinstance(returned[0], (tuple, list)):
        raise Fault(f'it returns {form(returned)}; {right}')
    losses, update = returned
    if len(losses) != count or isinstance(update, (tuple, list)):
        raise Fault(f'it returns {form(returned)}; {right}')
    for each in [*losses, update]:
        operation(each)
    return losses, update


def operation(value: Any) -> tf.Operation:
    """Returns the operation of a tensor, variable or operation of the default graph; else raises a Fault."""
    try:
        element = tf.get_default_graph().as_graph_element(value)
    except (KeyError, TypeError, ValueError) as error:
        raise Fault(f'it returns {form(value)}; an operation or a tensor of the graph is right') from error
    return getattr(element, 'op', element)


def form(value: Any) -> str:
    """Describes the form of a value in one line, such as '([a tensor, a tensor], an operation)'."""
    if isinstance(value, (tuple, list)):
        parts = ', '.join(map(form, value))
        return shortened(f'({parts})' if isinstance(value, tuple) else f'[{parts}]')
    if isinstance(value, tf.Variable):
        return 'a variable'
    return 'a tensor' if tf.is_tensor(value) else 'an operation' if isinstance(value, tf.Operation) else shown(value)


def check_variables(count: int) -> None:
    """Raises a Fault unless the default graph has `count` trainable variables."""
    names = [variable.op.name for variable in tf.trainable_variables()]
    if len(names) != count:
        listed = f' ({", ".join(names)})' if names else ''
        raise Fault(f'the graph has {counted(len(names), "trainable variable")}{listed}; {count} is right')


def check_device(value: Any, device: str, what: str) -> None:
    """Raises a Fault if a tensor or a variable is not on a device; `what` is its name, such as 'the weight'."""
    found = tf.DeviceSpec.from_string(value.device or '')
    if (found.device_type, found.device_index) != ('CPU', int(device.rpartition(':')[2])):
        raise Fault(f'{what} is on {value.device or "no device"}; {device} is right')


def check_busy(fetches: Any, devices: Iterable[str]) -> None:
    """Raises a Fault if one of the devices computes nothing for the fetches."""
    busy = {tf.DeviceSpec.from_string(each.device).device_index for each in before(fetches)
            if each.type in _ARITHMETIC and each.device}
    for k, device in enumerate(devices):
        if k not in busy:
            raise Fault(f'nothing is computed on {device}')


def check_order(fetches: Any) -> None:
    """Raises a Fault if one `session.run` reads and updates a variable, but nothing orders the read and the update."""
    fetched = before(fetches)
    for handle in [each for each in fetched if each.type == 'VarHandleOp']:
        uses = [each for each in handle.outputs[0].consumers() if each in fetched]
        updates = [each for each in uses if each.type.startswith(_UPDATES)]
        for update in updates:
            earlier = before(update)
            for read in [each for each in uses if each.type in _READS]:
                if read not in earlier and update not in before(read):
                    if len(updates) > 1:
                        raise Fault(f'{handle.name} has {len(updates)} updates in a step, and nothing orders them; one '
                                    'update is right')
                    raise Fault(f'the read {read.name} of {handle.name} may run before or after the update '
                                f'{update.name}, because nothing orders them')


def before(fetches: Any) -> set:
    """Returns the operations that run when some tensors and operations are fetched."""
    found, pending = set(), [operation(each) for each in tf.nest.flatten(fetches)]
    while pending:
        each = pending.pop()
        if each not in found:
            found.add(each)
            pending += [*each.control_inputs, *(tensor.op for tensor in each.inputs)]
    return found


def check_value(value: Any, right: Any, size: float, what: str) -> None:
    """Raises a Fault if a value is wrong by more than the float32 rounding of numbers of this size."""
    if mismatch(value, right, size):
        raise Fault(f'{what} is {shown(value)}; {shown(right)} is right')


def check_steps(function: Callable, random: np.random.Generator, replicated: bool) -> str | None:
    """Takes steps of towers that share one weight or have a copy each; returns None or the first counterexample.

    Args:
      function: the reader's, (devices, x, rate) -> (losses, update); the loss of a tower is the mean of
        (weight - number)^2 over its share of x, and the weight starts at 0.
      replicated: whether there is a copy of the weight on each device, instead of one on /cpu:0.
    """
    for count in (2, 1, 3, 4):
        batches = [[[1, 2, 3, 6]]] if count != 3 else [[[3, 1, 2]]]
        batches.append(random.normal(2, 3, size=(6, count * random.integers(2, 9))).round(2))
        for drawn in batches:
            rate = 0.1 if len(drawn) == 1 else float(random.uniform(0.01, 0.4))
            try:
                with tf.Graph().as_default():
                    _take_steps(function, np.array(drawn, np.float32), devices_of(count), rate, replicated)
            except Fault as fault:
                return f'for {counted(count, "device")} and the rate {rate:.4g} {fault}'
    return None


def _take_steps(function, batches, devices, rate, replicated):
    """Takes one step on the devices with each batch, float32 [n, N]; raises a Fault if a step is wrong."""
    x = tf.placeholder(tf.float32, batches.shape[1:], 'x')
    losses, update = losses_and_update(call_once(function, list(devices), x, rate), len(devices))
    check_variables(len(devices) if replicated else 1)
    weights = sorted(tf.trainable_variables(), key=lambda variable: variable.device)
    for weight, device in zip(weights, devices):
        check_device(weight, device, weight.op.name)
    check_order([losses, update])
    right, size = 0.0, np.abs(batches).max()
    with session(len(devices)) as run:
        for step, batch in enumerate(batches, 1):
            for k, (loss, share) in enumerate(zip(run(losses, {x: batch}), np.split(batch, len(devices)))):
                check_value(loss, np.mean((right - share) ** 2), size ** 2,
                            f'and x = {shown(batch)} in step {step}, the loss of tower {k}')
            run(update, {x: batch})
            right -= rate * np.mean(2 * (right - batch.astype(float)))
            for weight, value in zip(weights, run(weights)):
                check_value(value, right, size, f'and x = {shown(batch)} in step {step}, the updated {weight.op.name}')
    for k, (loss, device) in enumerate(zip(losses, devices)):
        check_device(loss, device, f'the loss of tower {k}')
        own = weights[k if replicated else 0].handle.op
        if [each for each in before(loss) if each.type == 'VarHandleOp'] != [own]:
            raise Fault(f'the loss of tower {k} does not come from {own.name} alone')
