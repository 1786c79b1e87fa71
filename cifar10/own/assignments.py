"""Represents the assignments of a graph as values, which later reads and the update use."""
import collections
import re
from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import with_inputs
from cifar10.model.untrained_variables import add_assignment
from cifar10.own.subgraphs import Order

_WRITES = re.compile(r'Assign\w*VariableOp|Resource(?!Gather)\w+')  # types of operations that change a variable
STEPS = re.compile(r'Resource(Sparse)?Apply\w+')  # types that optimizers' steps have
# Types of operations whose result is known -> the function of the value before and the operation's input.
ASSIGNMENTS = {'AssignVariableOp': None, 'AssignAddVariableOp': 'AddV2', 'AssignSubVariableOp': 'Sub'}


def changes_a_variable(operation: tf.Operation | tf.NodeDef) -> bool:
    """Returns whether an operation changes the variable that is its first input."""
    return _WRITES.fullmatch(operation.op if isinstance(operation, tf.NodeDef) else operation.type) is not None


class Assignments:
    """Turns the assignments of a tower into values. The tower itself assigns nothing.

    Args:
      variables: the variables, by the names of their handles.
      needed: the operations of the tower, in the current graph.

    Attributes:
      variables: as given.
      all: the operations that change a variable, in creation order.
    """

    def __init__(self, variables: dict, needed: set[tf.Operation]):
        graph = tf.get_default_graph()
        begun = with_inputs(variable.initializer for variable in variables.values())
        self.variables = variables
        self._needed = needed
        self.all = [each for each in graph.get_operations()
                    if each in needed and changes_a_variable(each) and each not in begun]
        self._order = Order(graph, self.all, {})
        self._by_handle = collections.defaultdict(list)
        for each in self.all:
            self._by_handle[each.inputs[0].op.name].append(each)

    def before(self, reader: tf.Operation, handle: str) -> tf.Operation | None:
        """Returns the last assignment to a variable, given its handle, before an operation; None if there is none."""
        earlier = [each for each in self._by_handle[handle] if self._order.is_after(reader, each)]
        return earlier[-1] if earlier else None

    def collect(self) -> None:
        """Adds the assigned values to the moving statistics of the graph."""
        for each in self.all:
            value = -each.inputs[1] if each.type == 'AssignSubVariableOp' else each.inputs[1]
            add_assignment(self.variables[each.inputs[0].op.name], value, each.type != 'AssignVariableOp')

    def replace(self, nodes: dict[str, tf.NodeDef]) -> None:
        """Removes the assignments from NodeDefs, keyed by name; a later read becomes the assigned value."""
        for operation in sorted(self._needed, key=lambda each: each.name) if self.all else ():
            if operation.type == 'ReadVariableOp':
                handle = operation.inputs[0].op.name
                if (assignment := self.before(operation, handle)) is not None:
                    value = self._value_after(assignment, nodes)
                    nodes[operation.name] = node_of('Identity', operation.name, [value], operation.outputs[0].dtype)
        values = {each.name: each.inputs[1].op.name for each in self.all}
        for name in values:
            del nodes[name]
        for node in nodes.values() if values else ():
            if any(each.startswith('^') and each[1:] in values for each in node.input):
                # An operation that waited for an assignment waits for its value.
                inputs = [f'^{values[each[1:]]}' if each.startswith('^') and each[1:] in values else each
                          for each in node.input]
                node.ClearField('input')
                node.input.extend(inputs)

    def _value_after(self, assignment, nodes):
        """Returns the name of the variable's value after an assignment."""
        value, function = assignment.inputs[1], ASSIGNMENTS.get(assignment.type)
        if function is None:
            return value.name
        name = f'{assignment.name}/after'
        if name not in nodes:
            handle = assignment.inputs[0].op.name
            if (earlier := self.before(assignment, handle)) is not None:
                before = self._value_after(earlier, nodes)
            else:
                before = f'{assignment.name}/before'
                nodes[before] = node_of('ReadVariableOp', before, [handle], value.dtype, 'dtype')
            nodes[name] = node_of(function, name, [before, value.name], value.dtype)
        return name


def node_of(kind: str, name: str, inputs: Iterable[str], dtype: tf.DType, attribute: str = 'T') -> tf.NodeDef:
    """Returns the NodeDef of an operation with one attribute, a type."""
    node = tf.NodeDef(name=name, op=kind, input=inputs)
    node.attr[attribute].type = dtype.as_datatype_enum
    return node
