"""A copy of a traced function in a tower: its operations, over variables from `tf.get_variable`.

Gradients flow through a copy as through any other operation: they are the traced ones, which are copied when they are
asked for.
"""
import weakref
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import note_copy
from cifar10.model import parts
from cifar10.own.call import STEP
from cifar10.own.pieces import Piece, operation_of, tensor_of, value_of
from cifar10.own.traced import Traced

SCOPE = 'network'  # the name scope of the operations
_GRADIENT = 'cifar10.Copy'  # the name under which TensorFlow has `_gradient`
# The graph collection of (name of an operation, the function that adds its gradient).
_GRADIENTS = 'gradients_of_copies'
_copied = weakref.WeakKeyDictionary()  # graph -> what was copied into it, a list


class Copied(NamedTuple):
    """What a copy computes: tensors of the current graph.

    Attributes:
      outputs: what the function returns, and then its losses.
      assignments: (variable, value, keep) triples, as a `layers.MovingStatistic` has them.
      activations: floats.
      summaries: string tensors.
    """
    outputs: list
    assignments: list
    activations: list
    summaries: list


def copy(traced: Traced, inputs: Mapping[str, tf.Tensor]) -> Copied:
    """Adds a copy to the current graph.

    Args:
      inputs: by their names, those of the traced function, with `POSITION` if it draws.
    """
    with tf.name_scope(SCOPE) as scope:
        building = _Copy(traced, scope, inputs)
        outputs = building.forward()
    _copied.setdefault(tf.get_default_graph(), []).append(traced)
    variables, tensors = building.variables, building.tensors
    return Copied(
        outputs, [(variables[each.variable], tensors[each.value], each.keep) for each in traced.assignments],
        *([tensors[name] for name in names] for names in (traced.activations, traced.summaries)))


def copied_here() -> list[Traced]:
    """Returns what was copied into the current graph, in this order."""
    return _copied[tf.get_default_graph()]


def follow(traced: Traced, means: Mapping[str, tf.Tensor]) -> tuple[tf.Operation, list[tf.Tensor]]:
    """Adds what follows the gradients of a model, over variables of the current scope that exist.

    Args:
      means: what it takes, by the names of its `TrainOp`.

    Returns:
      (what is run, the summaries that it adds).
    """
    update = traced.train_op
    with tf.name_scope(SCOPE) as scope, tf.variable_scope(tf.get_variable_scope(), reuse=True):
        tensors = {**means, **{each.handle: _variable(traced, each).handle for each in traced.variables
                               if each.handle in update.piece.needs}}
        note_copy(scope, traced.graph)
        _add(_beside_variables(update.piece, tensors), tensors, scope, _begin())
        updated = tf.group(*[tensors[name] for name in update.targets])
    return updated, [tensors[name] for name in update.summaries]


def _beside_variables(piece, tensors):
    """Returns a piece in which what changes or reads a variable is on the device of that variable."""
    definition = _copy_of(piece.definition)
    for node in definition.node:
        for each in map(tensor_of, node.input):
            if each in piece.needs and each in tensors and tensors[each].dtype == tf.resource:
                node.device = tensors[each].device
    return piece._replace(definition=definition)


def uses(traced: Traced, name: str) -> bool:
    """Returns whether the copies of a traced function need one of its inputs."""
    tensor = traced.inputs[name]
    return any(tensor in piece.needs for piece in (*traced.forward, *traced.backward, *traced.initial.values()))


def _variable(traced, variable):
    """Returns a variable of a copy, which is made if it does not exist."""
    def initial(shape, dtype=None, partition_info=None):
        with tf.name_scope('initial_value') as scope:
            tensors = {each.handle: _get(each).handle for each in traced.variables if each.handle in piece.needs}
            _add(piece, tensors, scope)
        return tensors[variable.initial]

    def _get(other):
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            return tf.get_variable(other.name, other.shape, other.dtype)
    piece = traced.initial[variable.name]
    with tf.variable_creator_scope(lambda next_creator, **arguments: next_creator(beside=variable.beside, **arguments)):
        return tf.get_variable(variable.name, variable.shape, variable.dtype, initial, trainable=variable.trained,
                               constraint=variable.constraint)


class _Copy:
    """A copy that is being built.

    Attributes:
      variables: those that exist so far, by their names.
      tensors: those that exist so far, by the names that they have in the traced graph.
    """

    def __init__(self, traced, scope, inputs):
        self._traced = traced
        self._scope = scope
        self._needs = frozenset().union(*(piece.needs for piece in (*traced.forward, *traced.backward)))
        self.variables = {}
        self.tensors = {traced.inputs[name]: tensor for name, tensor in inputs.items()}
        if traced.inputs[STEP] in self._needs:
            self.tensors[traced.inputs[STEP]] = tf.train.get_global_step().handle
        self._division = parts.current()
        self._number = zlib.crc32(scope.encode())
        self._begin = _begin()
        self._devices = [self._begin.device]
        note_copy(scope, traced.graph)

    def forward(self):
        """Adds the operations of the forward pass; returns the outputs."""
        for part, (piece, cut) in enumerate(zip(self._traced.forward, (*self._traced.cuts, None))):
            self._add_variables(part)
            self._add(piece, self.tensors, self._scope, self._begin)
            if cut:
                self.tensors[cut.taken] = parts.next_part(self.tensors[cut.given])
                self._devices.append(_begin().device)
        outputs = [self.tensors[name] for name in self._traced.outputs]
        if not self._traced.gradients:
            return outputs
        values = [self._value(name) for name in self._traced.gradients]
        with tf.get_default_graph().gradient_override_map({'IdentityN': _GRADIENT}):
            outputs = tf.raw_ops.IdentityN(input=[*outputs, *values], name='outputs')[:len(outputs)]
        tf.add_to_collection(_GRADIENTS, (outputs[0].op.name, self.backward))
        return outputs

    def _add_variables(self, part):
        """Gets or makes the variables of a part, where it is."""
        for each in self._traced.variables:
            if each.part == part:
                variable = self.variables[each.name] = _variable(self._traced, each)
                value = value_of(operation_of(each.handle))
                if each.handle in self._needs:
                    self.tensors[each.handle] = variable.handle
                if value in self._needs or each.name in self._traced.gradients:
                    # One read for all uses: each read of a variable on the CPU copies it to the tower's device.
                    self.tensors[value] = tf.convert_to_tensor(variable)

    def _value(self, name):
        """Returns what a gradient is of: the value of a variable, or an input."""
        handles = {each.name: operation_of(each.handle) for each in self._traced.variables}
        return self.tensors[value_of(handles[name]) if name in handles else self._traced.inputs[name]]

    def backward(self, operation, *gradients):
        """Adds the operations of the gradients; returns those of the inputs of an operation, `outputs`."""
        tensors = {**self.tensors, **dict(zip(self._traced.output_gradients, gradients))}
        # Within a gradient function there is no device but that of the operation.
        with tf.device(operation.device), tf.name_scope(SCOPE) as scope:
            note_copy(scope, self._traced.graph)
            begin = _begin()
            for piece, cut in zip(self._traced.backward, (*self._traced.back_cuts, None)):
                self._add(piece, tensors, scope, begin, self._devices)
                if cut:
                    tensors[cut.taken] = self._handed_back(cut, tensors)
        outputs = len(self._traced.outputs)
        return [None] * outputs + [tensors[name] for name in self._traced.gradients.values()]

    def _add(self, piece, tensors, scope, begin, devices=()):
        """Adds a piece as `_add` does; the same seed draws the same random numbers forward and backward."""
        _add(piece._replace(definition=_drawing(piece.definition, self._number)), tensors, scope, begin, devices)

    def _handed_back(self, cut, tensors):
        """Returns the gradient that a part hands to the one before, once that may go on."""
        number = len(self._traced.cuts) - 1 - self._traced.back_cuts.index(cut)
        if self._division is None:
            return tensors[cut.given]
        with tf.device(self._devices[number]):
            return self._division.handed_back(number, tensors[cut.given])


@tf.RegisterGradient(_GRADIENT)
def _gradient(operation, *gradients):
    return dict(operation.graph.get_collection(_GRADIENTS))[operation.name](operation, *gradients)


def _begin():
    """Returns a tensor that waits for what operations wait for here."""
    return tf.constant(0, name='begin')


def _add(piece: Piece, tensors: dict, scope: str, begin: tf.Tensor | None = None, devices=()) -> None:
    """Adds the operations of a piece to the current graph, and what they give to `tensors`.

    Args:
      begin: all operations run after it; None if they wait for nothing.
      devices: those of the parts, where there are several.
    """
    definition = piece.definition
    waits = begin is not None and bool(begin.op.control_inputs)
    several = len(devices) > 1
    handles = {need for need in piece.needs if need in tensors and tensors[need].dtype == tf.resource}
    if waits or several:
        definition = _copy_of(definition)
        for node in definition.node:
            if waits and (not node.input or not handles.isdisjoint(map(tensor_of, node.input))):
                node.input.append('^begin')
            if several:
                spec = tf.DeviceSpec.from_string(node.device)
                own = spec.replace(task=None) if spec.device_type else tf.DeviceSpec()
                node.device = tf.DeviceSpec.from_string(devices[spec.task or 0]).make_merged_spec(own).to_string()
    if not definition.node:
        return
    waiting = any('^begin' in node.input for node in definition.node)
    given = {need: tensors[tensor_of(need)] for need in piece.needs}
    with tf.control_dependencies(None):  # instead, those operations wait that wait for no other
        results = tf.import_graph_def(definition, {**given, **({'^begin': begin} if waiting else {})}, piece.gives,
                                      name=scope)
    for name, result in zip(piece.gives, results):
        tensors[name] = result
        if f'^{operation_of(name)}' not in tensors:
            tensors[f'^{operation_of(name)}'] = _after(result) if isinstance(result, tf.Operation) else result


def _drawing(definition, number):
    """Returns a definition whose operations draw the random numbers of a copy, given a number of its own.

    TensorFlow counts the seeds of draws in the graph where they are made, so they would be equal in all copies.
    """
    if not any('seed2' in node.attr for node in _with_functions(definition)):
        return definition
    definition = _copy_of(definition)
    # Functions, such as the body of a loop, are known by their names.
    names = {each.signature.name: f'{each.signature.name}_{number}' for each in definition.library.function}
    for function in definition.library.function:
        function.signature.name = names[function.signature.name]
    for gradient in definition.library.gradient:
        gradient.function_name, gradient.gradient_func = names[gradient.function_name], names[gradient.gradient_func]
    for node in _with_functions(definition):
        if 'seed2' in node.attr and (node.attr['seed'].i or node.attr['seed2'].i):
            node.attr['seed2'].i = (node.attr['seed2'].i + number) % 2 ** 31
        node.op = names.get(node.op, node.op)
        for value in node.attr.values():
            for called in ([value.func] if value.HasField('func') else value.list.func):
                called.name = names.get(called.name, called.name)
    return definition


def _with_functions(definition):
    """Yields the operations of a definition and of its functions."""
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def _copy_of(definition):
    copied = tf.GraphDef()
    copied.CopyFrom(definition)
    return copied


def _after(operation):
    """Returns a tensor that stands for an operation which has none."""
    with tf.control_dependencies([operation]):
        return tf.constant(0)
