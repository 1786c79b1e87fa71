"""Digests of operations, by which another network is found out: those of the same code are the same in each process."""
import hashlib
from collections.abc import Iterable
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.own.pieces import operation_of

# Attributes that count calls, or tell of the devices of the process.
_BY_CALL = 'seed', 'seed2', 'shared_name', 'container', 'debug_name', 'token', 'config', 'config_proto', 'executor_type'


def digest(*parts: Any) -> str:
    """Returns a digest of the texts of values, in hexadecimal."""
    return hashlib.sha256('\n'.join(map(str, parts)).encode()).hexdigest()


class Functions:
    """The functions of a graph, such as the bodies of its loops.

    Their names, those of what is in them, and the order there have numbers that count calls in a process. So a function
    is known by what it computes: each of its operations by its type, its attributes and the digests of its inputs.

    Args:
      library: of a GraphDef.
    """

    def __init__(self, library: Any):
        self._library = {each.signature.name: each for each in library.function}
        self._digests = {}  # name of a function -> its digest

    def digest_of(self, node: tf.NodeDef, inputs: Iterable[str]) -> str:
        """Returns the digest of an operation, given what its inputs are."""
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
            found = {each.name: f'argument {number}' for number, each in enumerate(function.signature.input_arg)}

            def of(source):
                operation, _, result = source.partition(':')
                return f"{'^' * source.startswith('^')}{found[operation.lstrip('^')]}:{result}"
            nodes = {node.name: node for node in function.node_def}
            pending = list(nodes)
            while pending:  # an operation may be before those that it needs
                node = nodes[pending[-1]]
                before = [name for name in map(operation_of, node.input) if name not in found]
                pending += before
                if not before:
                    found[node.name] = found.get(node.name) or self.digest_of(node, map(of, node.input))
                    pending.pop()
            results = [of(function.ret[each.name]) for each in function.signature.output_arg]
            self._digests[name] = digest(*results, *sorted(map(of, nodes)))
        return self._digests[name]
