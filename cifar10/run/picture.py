"""The graph that TensorBoard shows: input -> towers -> update -> variables.

A simplified GraphDef, with only what a step runs, in a few boxes; it is shown, never run.
"""
import re
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

# Scopes that are a box of their own. All others belong to the update: the learning rate, counters, averages.
_BOXES = re.compile(r'(input|tower_\d+|update)(/|$)')
# Bookkeeping, left out: every operation of a tower waits for the tower's turn.
_LEFT_OUT = 'turns/'


def of_graph(graph: tf.GraphDef, fetched: Sequence[str]) -> tf.GraphDef:
    """Returns a graph laid out for reading.

    It has the operations that the fetched ones need, without the library of functions. The iterators' place is taken by
    the data sets that they go through, or nothing would connect the input to the towers.

    Args:
      graph: of the program.
      fetched: names of tensors or operations.
    """
    nodes = {node.name: node for node in graph.node}
    # The dataset in place of the iterator that is made of it.
    datasets = {_operation(node.input[1]): node.input[0] for node in graph.node if node.op == 'MakeIterator'}
    variables = {node.name for node in graph.node if node.op == 'VarHandleOp'}
    shown, waiting = {}, [_operation(name) for name in fetched]
    while waiting:
        name = waiting.pop()
        if name not in shown:
            shown[name] = [datasets.get(_operation(each), each) for each in nodes[name].input
                           if not _operation(each).startswith(_LEFT_OUT)]
            waiting += map(_operation, shown[name])
    result = tf.GraphDef(versions=graph.versions)
    for name in sorted(shown):
        node = result.node.add()
        node.CopyFrom(nodes[name])
        del node.input[:]
        node.input.extend(_renamed(each, variables) for each in shown[name])
        node.name = _renamed(name, variables)
        for attribute in ('_class', 'value') if node.op == 'Const' else ('_class',):
            node.attr.pop(attribute, None)  # names of other operations; numbers that nobody reads in a picture
    return result


def _operation(name):
    """Returns the name of the operation that a tensor or a control input is of."""
    return name.removeprefix('^').split(':')[0]


def _renamed(name, variables):
    """Returns the name of an operation, a tensor or a control input within its box."""
    control = '^' * name.startswith('^')
    name = re.sub(r'^replica_\d+/(?=tower_)', '', name.removeprefix('^'))  # MirroredStrategy's scopes
    if _BOXES.match(name):
        return control + name
    parts = _operation(name).split('/')
    of_variable = any('/'.join(parts[:i]) in variables for i in range(1, len(parts) + 1))
    return f"{control}{'variables' if of_variable else 'update/beside'}/{name}"
