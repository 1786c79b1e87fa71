"""Copies a traced tower: adds its operations to the current graph, over variables from `tf.get_variable`."""
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import note_copy
from cifar10.own.follow_up import AFTER, BEFORE, FollowUp
from cifar10.own.isolated_call import STEP
from cifar10.own.subgraphs import BEGIN, Piece, is_draw, operation_of, tensor_of, value_of
from cifar10.own.tracing import Traced

SCOPE = 'network'  # the name scope of the operations


class Copied(NamedTuple):
    """The results of a copy: tensors of the current graph.

    Attributes:
      outputs: as `Traced.outputs` has them.
      averaged: a tensor for each entry of `Traced.averaged`, or `tf.IndexedSlices` for a sparse gradient.
      variables: the variables, by their names in the traced graph.
    """
    outputs: Mapping[str, Any]
    averaged: list
    variables: Mapping[str, tf.Variable]


def copy(traced: Traced, inputs: Mapping[str, tf.Tensor]) -> Copied:
    """Adds a copy of a tower to the current graph.

    Args:
      inputs: tensors by the names of the traced function's inputs; further tensors are ignored.
    """
    with tf.name_scope(SCOPE) as scope:
        variables = {each.name: _variable(traced, each) for each in traced.variables}
        tensors = {traced.inputs[name]: tensor for name, tensor in inputs.items() if name in traced.inputs}
        if traced.uses(STEP):
            tensors[traced.inputs[STEP]] = tf.train.get_or_create_global_step().handle
        for each in traced.variables:
            tensors[each.handle] = variables[each.name].handle
            if (value := value_of(operation_of(each.handle))) in traced.piece.needs:
                # All uses share one read: each read of a variable on the CPU copies it to the tower's device.
                tensors[value] = tf.convert_to_tensor(variables[each.name])
        if traced.fillers:
            with tf.device('/cpu:0'):
                _add(traced, traced.tables, tensors, scope)
        for filler in traced.fillers:
            tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, tensors[filler])
        _add(traced, _drawing(traced.piece, zlib.crc32(scope.encode())), tensors, scope)
    outputs = tf.nest.map_structure(tensors.get, traced.outputs)
    averaged = []
    for entry in traced.averaged:
        values = [tensors[name] for name in entry.values]
        if len(values) == 1:
            if entry.variable:
                values[0].set_shape(variables[entry.variable].shape)
            averaged.append(values[0])
        else:
            averaged.append(tf.IndexedSlices(
                *values, tf.constant(variables[entry.variable].shape.as_list(), values[1].dtype)))
    return Copied(outputs, averaged, variables)


def follow(traced: Traced, after: FollowUp, variables: Mapping[str, tf.Variable], means: list,
           before: tf.Tensor) -> tuple[tf.Operation, list[tf.Tensor]]:
    """Adds the follow-up of a model to the current graph.

    Args:
      variables: the copy of the variables to change, as in `Copied.variables`.
      means: the mean over the towers for each entry of `Traced.averaged`.
      before: the global step before the update, int64 scalar.

    Returns:
      (the operation to run, its summaries).
    """
    tensors: dict[str, tf.Tensor] = {}
    for each, mean in zip(traced.averaged, means):
        tensors.update(zip(each.means, [mean] if len(each.means) == 1 else [mean.values, mean.indices]))
    tensors.update({BEFORE: before, AFTER: before + 1, traced.inputs[STEP]: tf.train.get_global_step().handle})
    tensors.update({each.handle: variables[each.name].handle for each in traced.variables})
    with tf.name_scope(SCOPE) as scope:
        _add(traced, _beside_variables(after.piece, tensors), tensors, scope)
    return tf.group([tensors[name] for name in after.targets]), [tensors[name] for name in after.summaries]


def _variable(traced, variable):
    """Returns a variable of a copy; creates it if it does not exist."""
    def initial(shape, dtype=None, partition_info=None):
        piece = traced.initial[variable.name]
        with tf.name_scope('initial_value') as scope:
            tensors = {}
            for each in traced.variables:
                value = value_of(operation_of(each.handle))
                if each.handle in piece.needs or value in piece.needs:
                    tensors.update({each.handle: _existing(each).handle, value: tf.convert_to_tensor(_existing(each))})
            _add(traced, piece, tensors, scope)
        tensors[variable.initial].set_shape(variable.shape)  # a value from a checkpoint has no static shape
        return tensors[variable.initial]
    scope = tf.get_variable_scope()
    exists = f'{scope.name}/{variable.name}'.lstrip('/') in traced.existing
    # An operation of a follow-up may change several variables, such as a slot, so they must be on one server.
    is_together = traced.after is not None
    with tf.variable_scope(scope, reuse=exists or None, auxiliary_name_scope=False), tf.variable_creator_scope(
            lambda next_creator, **arguments: next_creator(on_first_server=is_together, **arguments)):
        return tf.get_variable(variable.name, variable.shape, variable.dtype, initial, trainable=variable.trained,
                               constraint=variable.constraint)


def _existing(variable):
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        return tf.get_variable(variable.name, variable.shape, variable.dtype)


def _add(traced: Traced, piece: Piece, tensors: dict, scope: str) -> None:
    """Adds the operations of a piece to the current graph, and their results to `tensors`."""
    note_copy(scope, traced.graph)
    given = {need: tensors[need] for need in piece.needs}
    if any(f'^{BEGIN}' in node.input for node in piece.definition.node):
        given[f'^{BEGIN}'] = tf.constant(0, name='begin')  # waits for the control dependencies here
    with tf.control_dependencies(None):  # the operations without inputs wait for BEGIN instead
        results = tf.import_graph_def(piece.definition, given, piece.gives, name=scope) if piece.gives else []
    tensors.update(zip(piece.gives, results))


def _beside_variables(piece, tensors):
    """Places each operation on a variable on the variable's device; returns the new piece."""
    definition = _copy_of(piece.definition)
    for node in definition.node:
        for each in map(tensor_of, node.input):
            if each in piece.needs and tensors[each].dtype == tf.resource:
                node.device = tensors[each].device
    return piece._replace(definition=definition)


def _drawing(piece, number):
    """Returns a piece whose operations draw the random numbers of a copy, given the copy's number.

    TensorFlow numbers the seeds of draws in the graph of their creation, so they would be equal in all copies.
    """
    if not any(is_draw(node) for node in _with_functions(piece.definition)):
        return piece
    definition = _copy_of(piece.definition)
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
    return piece._replace(definition=definition)


def _with_functions(definition) -> Iterator[tf.NodeDef]:
    """Yields the operations of a definition and of its functions."""
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def _copy_of(definition):
    copied = tf.GraphDef()
    copied.CopyFrom(definition)
    return copied
