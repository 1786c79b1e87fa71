"""The operations of a traced graph in pieces, each of which is copied in one go; they meet where a network is cut."""
import bisect
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.own.writes import functions_of


class Piece(NamedTuple):
    """Operations that are copied together.

    Attributes:
      definition: of the operations. With several parts, the device of each begins with the number of its part.
      needs: the tensors that they take from elsewhere; '^name' stands for an operation that they wait for.
      gives: the tensors and operations that others take from them.
    """
    definition: tf.GraphDef
    needs: frozenset[str]
    gives: tuple[str, ...]


class Cut(NamedTuple):
    """Where operations are cut: the tensor that is handed on, and the name by which it is taken."""
    given: str
    taken: str


def tensor_of(name: str) -> str:
    """Returns the full name of a tensor, as an input of a NodeDef or otherwise; '^name' stays as it is."""
    return name if ':' in name or name.startswith('^') else f'{name}:0'


def operation_of(name: str) -> str:
    """Returns the name of the operation that a tensor, or an input of a NodeDef, comes from."""
    return name.lstrip('^').partition(':')[0]


def value_of(handle: str) -> str:
    """Returns the name that stands for the value of a variable, given the name of its handle."""
    return f'{handle}/_value:0'


class Cutter:
    """Cuts the operations of a graph into pieces.

    Args:
      nodes: its operations by their names, and new ones.
      outside: the names of those that no piece has, such as inputs and variables.
      instead: the tensor that is taken in the place of another; both by their names.
      cuts, starts: where the forward pass is cut, and the number of operations before each cut.
      back_cuts: where the gradients are cut.
    """

    def __init__(self, graph: tf.Graph, nodes: dict, outside: set[str], instead: dict[str, str], cuts: Sequence[Cut],
                 starts: Sequence[int], back_cuts: Sequence[Cut]):
        definition = graph.as_graph_def()
        self._library, self._versions = definition.library, definition.versions
        self._functions = {function.signature.name for function in self._library.function}
        for function in self._library.function:
            for node in function.node_def:
                node.attr.pop('_class', None)  # all copies call the function, over variables on different devices
        self._graph = graph
        self._nodes = nodes
        self._cuts = [*cuts, *back_cuts]
        self._source = {operation_of(cut.taken): operation_of(cut.given) for cut in self._cuts}
        self._back = {operation_of(cut.taken) for cut in back_cuts}
        self._outside = outside | set(self._source)
        self._starts = starts
        self._numbers = {operation.name: number for number, operation in enumerate(graph.get_operations())}
        self._early = set()
        for node in nodes.values():
            inputs = [instead.get(tensor_of(each), each) for each in node.input]
            # What is outside comes by itself, and runs before.
            inputs = [each for each in inputs if not (each.startswith('^') and each[1:] in self._outside)]
            node.ClearField('input')
            node.input.extend(dict.fromkeys(inputs) if len(set(inputs)) < len(inputs) and all(
                each.startswith('^') for each in inputs) else inputs)
        # What takes the place of an input is computed first, however late it was made.
        self._early = set(self._needed([each for each in instead.values() if operation_of(each) in nodes]))

    def pieces(self, targets: Sequence[str], gradients: Sequence[str]) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
        """Returns the pieces that compute the targets, and those that then compute the gradients; all are tensors."""
        forward = self._needed(targets)
        is_forward = set(forward)
        backward = [name for name in self._needed(gradients) if name not in is_forward]
        count = len(self._starts) + 1
        groups = [[] for _ in range(count)]
        for name in forward:
            if name not in self._outside:
                groups[self.part(name)].append(name)
        stages, parts = {}, {}
        for name in backward:
            before = [each for each in self._before(name) if each in stages]
            stages[name] = max((stages[each] for each in before), default=0) + (name in self._back)
            parts[name] = self._part_of_gradient(name, parts)
        groups += [[] for _ in range(1 + max(stages.values(), default=0))]
        for name in backward:
            if name not in self._outside:
                groups[count + stages[name]].append(name)
        taken = {tensor_of(each) for each in (*targets, *gradients, *(cut.given for cut in self._cuts))}
        pieces = self._pieces(groups, taken, parts if count > 1 else {})
        return pieces[:count], pieces[count:]

    def piece(self, targets: Sequence[str]) -> Piece:
        """Returns the piece that computes tensors from what is outside."""
        needed = [name for name in self._needed(targets) if name not in self._outside]
        return self._pieces([needed], {tensor_of(each) for each in targets}, {})[0]

    def _before(self, name):
        """Returns the names of the operations that one needs."""
        if name in self._source:
            return [self._source[name]]
        return [] if name in self._outside else [operation_of(each) for each in self._nodes[name].input]

    def _needed(self, targets):
        """Returns the names of the operations that tensors need, each after those that it needs itself."""
        ordered, seen = [], set()
        for target in targets:
            pending = [(operation_of(target), False)]
            while pending:
                name, is_ready = pending.pop()
                if is_ready:
                    ordered.append(name)
                elif name not in seen:
                    seen.add(name)
                    pending += [(name, True), *((each, False) for each in self._before(name) if each not in seen)]
        return ordered

    def _number(self, name):
        """Returns the number of an operation in the order in which they were made; a new one is beside the old one."""
        while name not in self._numbers:
            name = name.rpartition('/')[0]
        return self._numbers[name]

    def part(self, name: str) -> int:
        """Returns the number of the part of the forward pass that an operation belongs to."""
        return 0 if name in self._early else bisect.bisect_right(self._starts, self._number(name))

    def _part_of_gradient(self, name, parts):
        """Returns the part whose device computes an operation of the gradients: that of what it is the gradient of."""
        groups = self._graph.get_operation_by_name(name).colocation_groups() if name in self._numbers else ()
        for group in groups:
            beside = group.decode().removeprefix('loc:@')
            if beside != name and beside in self._numbers:
                return parts.get(beside, self.part(beside))
        return max((parts.get(each, self.part(each)) for each in self._before(name)), default=0)

    def _pieces(self, groups, taken, parts):
        made = [set(group) for group in groups]
        needs = [{tensor_of(each) for name in group for each in self._nodes[name].input
                  if operation_of(each) not in made[number]} for number, group in enumerate(groups)]
        taken = taken.union(*needs)
        pieces = []
        for number, group in enumerate(groups):
            definition = tf.GraphDef(versions=self._versions)
            if any(each in self._functions for name in group for each in functions_of(self._nodes[name])):
                definition.library.CopyFrom(self._library)
            for name in group:
                node = definition.node.add()
                node.CopyFrom(self._nodes[name])
                node.attr.pop('_class', None)  # what was beside a variable is beside its tower
                is_on_cpu = tf.DeviceSpec.from_string(node.device).device_type == 'CPU'
                node.device = (f'/task:{parts[name]}' if name in parts else '') + ('/device:CPU:0' if is_on_cpu else '')
            gives = {self._given(each) for each in taken if operation_of(each) in made[number]}
            pieces.append(Piece(definition, frozenset(needs[number]), tuple(sorted(gives))))
        return tuple(pieces)

    def _given(self, need):
        """Returns the name by which a piece gives what others need: a tensor, or an operation that has none."""
        name = operation_of(need)
        if not need.startswith('^'):
            return need
        return f'{name}:0' if name not in self._numbers or self._graph.get_operation_by_name(name).outputs else name
