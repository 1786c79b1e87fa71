"""Graphs that may hold random operations, and what an operation needs."""
import contextlib
from collections.abc import Iterable, Iterator

import tensorflow.compat.v1 as tf


@contextlib.contextmanager
def seeded_graph(seed: int = 0) -> Iterator[tf.Graph]:
    """Context in which a new graph with a seed is the default one.

    TensorFlow refuses random operations in a graph without a seed where operations must be deterministic. So every
    graph in which a user's function is called is made here.

    Args:
      seed: of the operations that have none of their own.
    """
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(seed)
        yield graph


def with_inputs(operations: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Returns operations and all that they need."""
    found, pending = set(), list(operations)
    while pending:
        operation = pending.pop()
        if operation not in found:
            found.add(operation)
            pending += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    return found
