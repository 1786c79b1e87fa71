"""Extracts parts of a graph as GraphDefs, so that each part is copied in a single call."""
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

BEGIN = '_begin'  # a waiting piece runs after this operation; user code cannot create an operation of this name
_DRAWS = re.compile(r'Stateful(Random|Standard|Truncated|Uniform)\w*|Rng\w*')


class Piece(NamedTuple):
    """A group of operations that are copied together.

    Attributes:
      definition: the operations.
      needs: the names of the tensors that they take from outside.
      gives: the names of their tensors and operations that outside operations use.
    """
    definition: tf.GraphDef
    needs: frozenset[str]
    gives: tuple[str, ...]


def tensor_of(name: str) -> str:
    """Returns the full name of a tensor, given an input of a NodeDef."""
    return name if ':' in name or name.startswith('^') else f'{name}:0'


def operation_of(name: str) -> str:
    """Returns the name of the operation that produces a tensor or an input of a NodeDef."""
    return name.lstrip('^').partition(':')[0]


def value_of(handle: str) -> str:
    """Returns the name for a variable's value, given the name of its handle's operation."""
    return f'{handle}/_value:0'


def is_draw(node: tf.NodeDef) -> bool:
    """Returns whether the random numbers of an operation depend on the process's earlier draws."""
    return 'seed2' in node.attr or _DRAWS.fullmatch(node.op) is not None


def functions_of(node: tf.NodeDef) -> list[str]:
    """Returns the names of the functions that an operation calls, such as the branches of a tf.cond."""
    found = [node.op]
    for value in node.attr.values():
        found += [value.func.name] if value.HasField('func') else [each.name for each in value.list.func]
    return found


def library_of(graph: tf.Graph) -> dict:
    """Returns the functions of a graph, such as the branches of its tf.conds, by their names."""
    return {function.signature.name: function for function in graph.as_graph_def().library.function}


def within(node: tf.NodeDef, library: Mapping) -> Iterator[tf.NodeDef]:
    """Yields the operations in the functions that an operation calls."""
    for name in functions_of(node):
        for inner in library[name].node_def if name in library else ():
            yield inner
            yield from within(inner, library)


class Subgraphs:
    """Extracts pieces from a graph.

    Args:
      nodes: its operations by name, and new operations; their inputs are changed.
      outside: the names of operations outside all pieces, such as inputs and variables.
      instead: substitutes for tensors: {name: name of the substitute}.
    """

    def __init__(self, graph: tf.Graph, nodes: dict, outside: set[str], instead: Mapping[str, str]):
        definition = graph.as_graph_def()
        self._library, self._versions = definition.library, definition.versions
        self._functions = {function.signature.name for function in self._library.function}
        for function in self._library.function:
            for node in function.node_def:
                node.attr.pop('_class', None)  # all copies call the function, over variables on different devices
        self._nodes = nodes
        self._outside = outside
        for node in nodes.values():
            inputs = [instead.get(tensor_of(each), each) for each in node.input]
            # Operations outside run before the piece.
            inputs = [each for each in inputs if not (each.startswith('^') and each[1:] in outside)]
            node.ClearField('input')
            values = [each for each in inputs if not each.startswith('^')]
            node.input.extend([*values, *dict.fromkeys(inputs[len(values):])])

    def piece(self, targets: Sequence[str], waiting_for: Iterable[str] | None = None,
              without: Iterable[str] = ()) -> Piece:
        """Returns the piece that computes tensors and operations from tensors outside.

        Args:
          targets: their names.
          waiting_for: the names of the variables' handles; operations that take a handle, or have no input, run after
            BEGIN. None: no operation waits.
          without: the names of further outside operations.
        """
        outside = self._outside.union(without)
        names = [name for name in self._needed(targets, outside) if name not in outside]
        made = set(names)
        definition = tf.GraphDef(versions=self._versions)
        needs = set()
        if any(each in self._functions for name in names for each in functions_of(self._nodes[name])):
            definition.library.CopyFrom(self._library)
        waits = None if waiting_for is None else frozenset(waiting_for)
        for name in names:
            node = definition.node.add()
            node.CopyFrom(self._nodes[name])
            node.attr.pop('_class', None)  # colocation with a variable becomes the device of the tower
            is_on_cpu = tf.DeviceSpec.from_string(node.device).device_type == 'CPU'
            node.device = '/device:CPU:0' if is_on_cpu else ''
            sources = [*map(tensor_of, node.input)]
            needs |= {each for each in sources if operation_of(each) not in made}
            if waits is not None and (not node.input or not waits.isdisjoint(sources)):
                node.input.append(f'^{BEGIN}')
        gives = {each.lstrip('^') for each in targets if operation_of(each) in made}
        return Piece(definition, frozenset(needs), tuple(sorted(gives)))

    def _needed(self, targets, outside):
        """Returns the names of the operations that targets need, in topological order."""
        ordered, seen = [], set()
        for target in targets:
            pending = [(operation_of(target), False)]
            while pending:
                name, is_ready = pending.pop()
                if is_ready:
                    ordered.append(name)
                elif name not in seen:
                    seen.add(name)
                    before = [] if name in outside else map(operation_of, self._nodes[name].input)
                    pending += [(name, True), *((each, False) for each in before if each not in seen)]
        return ordered


class Order:
    """Compares the order of operations in a graph, by values and control inputs.

    Args:
      tracked: the operations that `is_after` takes.
      feeds: the tensors to feed, by placeholder.
    """

    def __init__(self, graph: tf.Graph, tracked: Iterable[tf.Operation], feeds: Mapping[tf.Tensor, tf.Tensor]):
        self._numbers = {operation: number for number, operation in enumerate(tracked)}
        self._before = dict.fromkeys(graph.get_operations(), 0)  # operation -> a bit for each operation before it
        fed = {key.op: value.op for key, value in feeds.items()}
        is_complete = not self._numbers
        while not is_complete:  # a second pass, because a control input may be younger than its operation
            is_complete = True
            for operation in self._before:
                sources = [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
                sources += [fed[operation]] if operation in fed else []
                bits = 0
                for each in sources:
                    bits |= self._before[each] | (1 << self._numbers[each] if each in self._numbers else 0)
                if bits != self._before[operation]:
                    self._before[operation], is_complete = bits, False

    def is_after(self, operation: tf.Operation, earlier: tf.Operation) -> bool:
        """Returns whether an operation runs after `earlier`, a tracked operation."""
        return bool(self._before[operation] >> self._numbers[earlier] & 1)
