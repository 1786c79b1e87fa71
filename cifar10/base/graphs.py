"""Helpers for graphs in several rooms: seeds, names, loading values, and sessions without GPUs."""
import contextlib
import os
import re
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.base import own_files
from cifar10.base.errors import UsageError

# Names of variables in checkpoints, and of a collection, for several rooms.
EXAMPLES_SEEN = 'examples_seen'  # the number of consumed examples: the position of the next example
LOSS_SCALE = ('current_loss_scale', 'good_steps')  # the variables of a loss scale
AVERAGE = '/ExponentialMovingAverage'  # suffix of the name of a variable's moving average
# The graph collection of (variable, value, keep) triples, for variables that follow the batches without gradients.
MOVING_STATISTICS = 'moving_statistics'
# The last parts of the names of the outer momentum's variables in `local`.
START, VELOCITY, AVERAGED_AT = OUTER_STATE = ('LocalStart', 'LocalVelocity', 'local_averaged_at')

_MOST_BYTES = 2 ** 31 - 2 ** 24  # of constants; protocol buffers are limited to 2 ** 31 with the rest of the graph
_is_deterministic = False  # a switch of the whole process, which TensorFlow cannot turn off again
# TensorFlow's exceptions for operations on a lost device: another process was killed, or a machine was preempted.
# Errors of this process's GPUs have other types, and are final.
LOST = (tf.errors.AbortedError, tf.errors.UnavailableError)


def turn_on_determinism() -> None:
    """Makes TensorFlow's operations deterministic in this process."""
    global _is_deterministic
    tf2.config.experimental.enable_op_determinism()
    _is_deterministic = True


def is_deterministic() -> bool:
    """Returns whether operations are deterministic, because of `turn_on_determinism` or of the environment."""
    return _is_deterministic or os.environ.get('TF_DETERMINISTIC_OPS', '').lower() in ('1', 'true')


def has_old_shapes() -> bool:
    """Returns whether the dimensions of a shape are objects with a `value`, as in TensorFlow 1."""
    return not isinstance(tf.TensorShape([1])[0], int)


@contextlib.contextmanager
def usual_switches() -> Iterator[None]:
    """Context with TensorFlow's default switches, also after calls such as `tf.disable_v2_behavior`.

    It ignores eager execution, which a default graph turns off.
    """
    switches = [(tf.enable_resource_variables, tf.disable_resource_variables, tf.resource_variables_enabled()),
                (tf.enable_control_flow_v2, tf.disable_control_flow_v2, tf.control_flow_v2_enabled()),
                (tf.enable_v2_tensorshape, tf.disable_v2_tensorshape, not has_old_shapes())]
    try:
        for enable, *_ in switches:
            enable()
        yield
    finally:
        for _, disable, was_on in switches:
            if not was_on:
                disable()


@contextlib.contextmanager
def seeded_graph(seed: int | None = 0) -> Iterator[tf.Graph]:
    """Context in which a new graph with a seed is the default graph.

    If operations must be deterministic, TensorFlow refuses random operations in a graph without a seed. So all graphs
    for users' functions are created here.

    Args:
      seed: seed for operations without one.
    """
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(seed)
        yield graph


def primary_name(name: str) -> str:
    """Returns a variable's name in the first copy of the variables, given its name in any copy."""
    return re.sub(r'^(replica_\d+/)+', '', name)


def with_inputs(operations: Iterable[tf.Operation], controls: bool = True,
                without: Collection[tf.Operation] = ()) -> set[tf.Operation]:
    """Returns operations and their transitive inputs.

    Args:
      controls: whether to follow control inputs, too.
      without: operations to leave out, with their inputs.
    """
    visited, pending = set(without), list(operations)
    while pending:
        operation = pending.pop()
        if operation not in visited:
            visited.add(operation)
            pending += [tensor.op for tensor in operation.inputs]
            pending += operation.control_inputs if controls else []
    return visited.difference(without)


# Graph -> {name scope: the graph that was copied into it}.
_copied: weakref.WeakKeyDictionary[tf.Graph, dict] = weakref.WeakKeyDictionary()


def note_copy(scope: str, graph: tf.Graph) -> None:
    """Notes that a graph was copied into a name scope of the current graph, for `place_of`."""
    _copied.setdefault(tf.get_default_graph(), {})[scope] = graph


def place_of(name: str, graph: tf.Graph | None = None) -> str:
    """Returns the line of a user's file that creates an operation, in the form of `own_files.place`."""
    graph = graph or tf.get_default_graph()
    for scope, copied in _copied.get(graph, {}).items():
        if name.startswith(scope):
            graph, name = copied, name.removeprefix(scope)
    try:
        operation = graph.get_operation_by_name(name)
    except KeyError:  # an operation within a function
        return ''
    return own_files.place((frame.filename, frame.lineno) for frame in operation.traceback)


def check_size(network: str) -> None:
    """Raises a UsageError if the constants of the current graph are too large for a graph file."""
    graph = tf.get_default_graph()
    constants = [operation for operation in graph.get_operations() if operation.type == 'Const']
    sizes = {op.name: op.outputs[0].shape.num_elements() * op.outputs[0].dtype.size for op in constants}
    if sum(sizes.values()) > _MOST_BYTES:  # the exact sizes: many equal elements are stored once
        sizes = {name: graph.get_operation_by_name(name).node_def.ByteSize() for name in sizes}
    if (total := sum(sizes.values())) > _MOST_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise UsageError(
            f'--network={network}: the constants of all its towers take {total / 1e9:.3g} GB, but TensorFlow writes at '
            f'most 2 GB; make the largest, {largest} of {sizes[largest] / 1e6:.3g} MB{place_of(largest)}, a shared '
            'variable: tf.get_variable(name, initializer=array, trainable=False)')


class Loader:
    """Assigns values to variables. Create it before the graph is finalised.

    Args:
      variables: variables of the current graph, by name.
    """

    def __init__(self, variables: Mapping[str, tf.Variable]):
        self._assignments = {}
        with tf.name_scope('load'):
            for name, variable in variables.items():
                value = tf.placeholder(variable.dtype.base_dtype, variable.shape)
                self._assignments[name] = value, variable.assign(value, read_value=False)

    def load(self, session: tf.Session, values: Mapping[str, np.ndarray]) -> None:
        """Assigns values in one session call.

        Args:
          values: arrays by variable name; the names must be in the constructor's `variables`.
        """
        assignments = {name: self._assignments[name] for name in values}
        session.run([operation for _, operation in assignments.values()],
                    {value: values[name] for name, (value, _) in assignments.items()})


@contextlib.contextmanager
def cpu_session(graph: tf.Graph | None = None) -> Iterator[tf.Session]:
    """Context with a session without GPUs; its graph is the default graph, on the CPU.

    The first session with GPUs sets their memory options for the whole process, so auxiliary sessions must not have
    GPUs.

    Args:
      graph: the graph of the session; default: a new graph.
    """
    with (graph or tf.Graph()).as_default() as graph, tf.device('/cpu:0'), lasting_cpu_session(graph) as session:
        yield session


def lasting_cpu_session(graph: tf.Graph) -> tf.Session:
    """Returns a session without GPUs, for an object that several threads call."""
    config = tf.ConfigProto(device_count={'GPU': 0}, allow_soft_placement=True)
    keep_order_of_sums(config)
    return tf.Session(graph=graph, config=config)


def keep_order_of_sums(config: tf.ConfigProto) -> None:
    """Configures a session so that equal runs round equally.

    By default, where the memory optimizer expects a peak, it replaces a sum of three or more tensors with additions in
    the order of their completion (TemporaryVariable, AssignAdd). MANUAL only disables this replacement.
    """
    config.graph_options.rewrite_options.memory_optimization = config.graph_options.rewrite_options.MANUAL
