"""Digests of operations, by which another network is found out: those of the same code are the same in each process."""
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.own.pieces import operation_of

# Attributes that count calls, or tell of the devices of the process.
_BY_CALL = 'seed', 'seed2', 'shared_name', 'container', 'debug_name', 'token', 'config', 'config_proto', 'executor_type'


def digest(*parts: Any) -> str:
    """Returns a digest of the texts of values, in hexadecimal."""
    return hashlib.sha256('\n'.join(map(str, parts)).encode()).hexdigest()


class Digests:
    """Makes the digests of operations in a graph and in its functions, such as the bodies of its loops.

    Names and orders count calls in a process, or follow the order of a set. So an operation is known by what it
    computes: by its type, its attributes and the digests of its inputs.

    Args:
      library: of a GraphDef.
    """

    def __init__(self, library: Any):
        self._library = {each.signature.name: each for each in library.function}
        self._digests = {}  # name of a function -> its digest

    def of(self, operations: Iterable[tf.NodeDef], given: Mapping[str, str]) -> dict[str, str]:
        """Returns the digests of operations by their names, in their order.

        Args:
          given: by their names, those of what the operations take from elsewhere.
        """
        nodes, found = {node.name: node for node in operations}, dict(given)

        def source(tensor):
            _, _, result = tensor.partition(':')
            return f"{'^' * tensor.startswith('^')}{found[operation_of(tensor)]}:{result}"
        pending = list(nodes)[::-1]
        while pending:  # an operation may be before those that it needs
            node = nodes[pending[-1]]
            before = [name for name in map(operation_of, node.input) if name not in found]
            pending += before
            if not before:
                if node.name not in found:
                    values = [each for each in node.input if not each.startswith('^')]
                    found[node.name] = self._of_node(node, [
                        *map(source, values), *sorted(map(source, node.input[len(values):]))])
                pending.pop()
        return {name: found[name] for name in nodes}

    def _of_node(self, node, inputs):
        parts = [self._of_function(node.op) or node.op, *inputs]
        for name, value in sorted(node.attr.items()):
            if value.HasField('func') or value.list.func:
                called = [value.func] if value.HasField('func') else value.list.func
                parts += [name, *(self._of_function(each.name) or each.name for each in called)]
            elif not name.startswith('_') and name not in _BY_CALL:
                parts.append(f'{name}={value.SerializeToString(deterministic=True).hex()}')
        return digest(*parts)

    def _of_function(self, name):
        """Returns the digest of a function; '' if it is none."""
        if name not in self._library:
            return ''
        if name not in self._digests:
            function = self._library[name]
            given = {each.name: f'argument {number}' for number, each in enumerate(function.signature.input_arg)}
            found = {**given, **self.of(function.node_def, given)}
            results = [function.ret[each.name].partition(':') for each in function.signature.output_arg]
            self._digests[name] = digest(
                *(found[operation] + result for operation, _, result in results), *sorted(found.values()))
        return self._digests[name]
