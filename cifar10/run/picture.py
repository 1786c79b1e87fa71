"""The graph that TensorBoard shows: input -> towers -> update -> variables.

It is a simplified GraphDef that has only what a step runs, in a few boxes. It is shown, never run.
"""
import re
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

# Scopes that are boxes of their own. All others belong to the update: the learning rate, counters, averages.
_BOXES = re.compile(r'(input|tower_\d+|update)(/|$)')
# Bookkeeping that is omitted: every operation of a tower waits for the tower's turn.
_OMITTED = 'turns/'


def of_graph(graph: tf.GraphDef, fetched: Sequence[str]) -> tf.GraphDef:
    """Returns a simplified graph for TensorBoard.

    It has the operations that `fetched` needs, without the library of functions. Each iterator is replaced by
    the data set that it reads; otherwise nothing would connect the input to the towers.

    Args:
      graph: the program's graph.
      fetched: names of the tensors or operations that the program runs.
    """
    nodes = {node.name: node for node in graph.node}
    # Iterator -> its data set.
    datasets = {_operation(node.input[1]): node.input[0] for node in graph.node if node.op == 'MakeIterator'}
    variables = {node.name for node in graph.node if node.op == 'VarHandleOp'}
    inputs = {}  # operation that is shown -> its inputs
    pending = [_operation(name) for name in fetched]
    while pending:
        name = pending.pop()
        if name not in inputs:
            inputs[name] = [datasets.get(_operation(source), source) for source in nodes[name].input
                            if not _operation(source).startswith(_OMITTED)]
            pending += [_operation(source) for source in inputs[name]]
    result = tf.GraphDef(versions=graph.versions)
    for name in sorted(inputs):
        node = result.node.add()
        node.CopyFrom(nodes[name])
        del node.input[:]
        node.input.extend(_renamed(source, variables) for source in inputs[name])
        node.name = _renamed(name, variables)
        for attribute in ('_class', 'value') if node.op == 'Const' else ('_class',):
            # `_class` has names of other operations; the values of constants are not shown.
            node.attr.pop(attribute, None)
    return result


def _operation(name):
    """Returns the name of the operation of a tensor or a control input."""
    return name.removeprefix('^').split(':')[0]


def _renamed(name, variables):
    """Returns the name of an operation, a tensor or a control input ('^name') within its box."""
    if name.startswith('^'):
        return '^' + _renamed(name.removeprefix('^'), variables)
    name = re.sub(r'^replica_\d+/(?=tower_)', '', name)  # MirroredStrategy's scopes
    if _BOXES.match(name):
        return name
    parts = _operation(name).split('/')
    if any('/'.join(parts[:i]) in variables for i in range(1, len(parts) + 1)):
        return f'variables/{name}'
    return f'update/beside/{name}'
