"""Assignments of a graph as values: what a variable is after each, for those who read it then, and for the update."""
import collections
import re
from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import place_of, with_inputs
from cifar10.model.layers import add_assignment
from cifar10.own.code import BrokenRule

# Types of operations that change a variable.
_WRITES = re.compile(r'Assign\w*VariableOp|Resource(?!Gather)\w+')
# Those that are understood -> the function of the value before and the operation's that gives the value after.
ASSIGNMENTS = {'AssignVariableOp': None, 'AssignAddVariableOp': 'AddV2', 'AssignSubVariableOp': 'Sub'}
WAYS = 'assign, assign_add or assign_sub outside of a tf.cond'
REMEDY = 'leave it out, or use cifar10.model.add_moving_statistic(variable, value, keep)'


class Writes:
    """The operations among some that change a variable of theirs.

    Args:
      variables: by the names of their handles.
      needed: the operations; all are of the current graph.
      counts: whether they are to be assigned; otherwise they are only left out.
      not_taken: the operations of branches that are not taken, where nothing is in vain.

    Attributes:
      all: the operations that change a variable, in the order in which they were made.
      in_vain: the names of operations of the graph that assign, and that are not needed.
    """

    def __init__(self, variables: dict, needed: set[tf.Operation], counts: bool, not_taken: set[tf.Operation]):
        initialisers = with_inputs(variable.initializer for variable in variables.values())
        operations = [operation for operation in tf.get_default_graph().get_operations()
                      if operation not in initialisers]
        writes = [operation for operation in operations if changes_a_variable(operation)]
        self._variables = variables
        self._needed = needed
        self.all = [operation for operation in writes if operation in needed]
        # An optimizer that the function has made writes what it updates, and then its global step.
        steps = {operation for operation in writes if operation.type.startswith('ResourceApply')}
        self.in_vain = [
            operation.name for operation in writes if operation not in needed | not_taken
            and operation.inputs[0].op.name in variables and steps.isdisjoint(with_inputs([operation]))
            and not (steps and variables[operation.inputs[0].op.name].trainable)
            and all(tensor.op.type != 'RestoreV2' for each in operation.inputs for tensor in each.op.inputs)]
        if counts:
            self._refuse_others()
        self._by_handle = collections.defaultdict(list)
        for write in self.all:
            self._by_handle[write.inputs[0].op.name].append(write)
        self._after = self._found_after()

    def _refuse_others(self):
        """Raises a BrokenRule if an operation changes a variable in a way that is not understood."""
        for write in self.all:
            variable = self._variables.get(write.inputs[0].op.name)
            if write.type not in ASSIGNMENTS or variable is None:
                raise BrokenRule(f'its operation {write.name} changes a variable{place_of(write.name)}, but not by '
                                 f'{WAYS}, so each update mode would run it a different number of times; {REMEDY}')
            if variable.trainable:
                raise BrokenRule(f'it assigns to the variable {variable.op.name}, which is trained'
                                 f'{place_of(write.name)}; leave the assignment out, or make the variable with '
                                 'trainable=False')
        library = {function.signature.name: function for function in
                   tf.get_default_graph().as_graph_def().library.function}
        for operation in self._needed if library else ():
            for inner in within(operation.node_def, library):
                if changes_a_variable(inner):
                    raise BrokenRule(f'its operation {inner.name} changes a variable{place_of(operation.name)}, which '
                                     f'is not {WAYS}, so it may run a different number of times; {REMEDY}')

    def _found_after(self):
        """Returns for each write the needed operations that come after it."""
        followers = collections.defaultdict(list)
        for operation in self._needed if self.all else ():
            for before in {tensor.op for tensor in operation.inputs}.union(operation.control_inputs):
                followers[before].append(operation)
        after = {}
        for write in self.all:
            found, pending = set(), [write]
            while pending:
                for operation in followers[pending.pop()]:
                    if operation not in found:
                        found.add(operation)
                        pending.append(operation)
            after[write] = found
        return after

    def before(self, reader: tf.Operation, handle: str) -> tf.Operation | None:
        """Returns the last write to a variable, given by its handle, that an operation comes after; or None."""
        earlier = [write for write in self._by_handle[handle] if reader in self._after[write]]
        return earlier[-1] if earlier else None

    def refuse_readers(self) -> None:
        """Raises a BrokenRule if more than a read follows a write: a loop, for example, takes the variable itself."""
        for operation in self._needed:
            for tensor in operation.inputs if operation.type != 'ReadVariableOp' else ():
                name = tensor.op.name
                if tensor.dtype == tf.resource and operation not in self.all and self.before(operation, name):
                    raise BrokenRule(f'it reads the variable {name} after assigning to it, in a loop or a branch'
                                     f'{place_of(operation.name)}, where it has the value of before; use what the '
                                     'assignment returns')

    def collect(self) -> None:
        """Adds what is assigned to the moving statistics of the graph."""
        for write in self.all:
            value = -write.inputs[1] if write.type == 'AssignSubVariableOp' else write.inputs[1]
            add_assignment(self._variables[write.inputs[0].op.name], value, write.type != 'AssignVariableOp')

    def replace(self, nodes: dict[str, tf.NodeDef]) -> None:
        """Takes the writes out of NodeDefs, which have names; a read that follows one is of the value after it."""
        for operation in sorted(self._needed, key=lambda each: each.name):
            if operation.type == 'ReadVariableOp':
                handle = operation.inputs[0].op.name
                if (write := self.before(operation, handle)) is not None:
                    value = self._value_after(write, nodes)
                    nodes[operation.name] = node_of('Identity', operation.name, [value], operation.outputs[0].dtype)
        written = {write.name: write for write in self.all}
        for name in written:
            del nodes[name]
        for node in nodes.values():
            if any(each.startswith('^') and each[1:] in written for each in node.input):
                # What waited for a write waits for its value.
                inputs = [f'^{written[each[1:]].inputs[1].op.name}' if each.startswith('^') and each[1:] in written
                          else each for each in node.input]
                node.ClearField('input')
                node.input.extend(dict.fromkeys(inputs) if all('^' in each for each in inputs) else inputs)

    def _value_after(self, write, nodes):
        """Returns the name of the tensor that a variable is after a write."""
        value, function = write.inputs[1], ASSIGNMENTS.get(write.type)
        if function is None:
            return value.name
        name = f'{write.name}/after'
        if name not in nodes:
            handle = write.inputs[0].op.name
            if (earlier := self.before(write, handle)) is not None:
                before = self._value_after(earlier, nodes)
            else:
                before = f'{write.name}/before'
                nodes[before] = node_of('ReadVariableOp', before, [handle], value.dtype, 'dtype')
            nodes[name] = node_of(function, name, [before, value.name], value.dtype)
        return name


def changes_a_variable(operation: tf.Operation | tf.NodeDef) -> bool:
    """Returns whether an operation changes the variable that is its first input."""
    return _WRITES.fullmatch(operation.op if isinstance(operation, tf.NodeDef) else operation.type) is not None


def node_of(kind: str, name: str, inputs: Iterable[str], dtype: tf.DType, attribute: str = 'T') -> tf.NodeDef:
    """Returns the NodeDef of an operation with one attribute, a type."""
    node = tf.NodeDef(name=name, op=kind, input=inputs)
    node.attr[attribute].type = dtype.as_datatype_enum
    return node


def within(node: tf.NodeDef, library: dict) -> Iterable[tf.NodeDef]:
    """Yields the operations in the functions that an operation calls."""
    for name in functions_of(node):
        for inner in library[name].node_def if name in library else ():
            yield inner
            yield from within(inner, library)


def functions_of(node: tf.NodeDef) -> list[str]:
    """Returns the names of the functions that an operation calls, such as the branches of a tf.cond."""
    found = [node.op]
    for value in node.attr.values():
        found += [value.func.name] if value.HasField('func') else [each.name for each in value.list.func]
    return found
