"""What graphs in several rooms need: seeds, names, values from outside, and sessions that only look at something."""
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

# The names of variables, as checkpoints have them, and of a collection, that more than one room must know.
EXAMPLES_SEEN = 'examples_seen'  # counts examples: the position of the next one
LOSS_SCALE = ('current_loss_scale', 'good_steps')  # those that a precision with a loss scale adds
AVERAGE = '/ExponentialMovingAverage'  # follows the name of a variable in that of its moving average
# The graph collection of (variable, value, keep) triples: what a network learns without gradients.
MOVING_STATISTICS = 'moving_statistics'
# The last parts of the names of the state of the averages in `local`.
START, VELOCITY, AVERAGED_AT = OUTER_STATE = ('LocalStart', 'LocalVelocity', 'local_averaged_at')

_MOST_BYTES = 2 ** 31 - 2 ** 24  # of constants; protocol buffers end at 2 ** 31, with the rest of the graph
_is_deterministic = False  # a switch of the whole process, which TensorFlow offers no way to turn off again
# What TensorFlow raises when a device was lost, from whatever was running on it: another process that was killed, a
# machine that was preempted. Errors of this process's own GPUs have other types, and are final.
LOST = (tf.errors.AbortedError, tf.errors.UnavailableError)


def turn_on_determinism() -> None:
    """Makes TensorFlow's operations deterministic in this process, from now on."""
    global _is_deterministic
    tf2.config.experimental.enable_op_determinism()
    _is_deterministic = True


def is_deterministic() -> bool:
    """Returns whether operations are deterministic, because of `turn_on_determinism` or of the environment."""
    return _is_deterministic or os.environ.get('TF_DETERMINISTIC_OPS', '').lower() in ('1', 'true')


def has_old_shapes() -> bool:
    """Returns whether a dimension of a shape is an object with a `value`, as in TensorFlow 1."""
    return not isinstance(tf.TensorShape([1])[0], int)


@contextlib.contextmanager
def usual_switches() -> Iterator[None]:
    """Context with TensorFlow's switches as in a new process, also after calls such as `tf.disable_v2_behavior`.

    Eager execution is not among them: a graph that is the default one turns it off.
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


def primary_name(name: str) -> str:
    """Returns the name that a variable has in the first copy of the variables, given its name in some copy."""
    return re.sub(r'^(replica_\d+/)+', '', name)


def with_inputs(operations: Iterable[tf.Operation], controls: bool = True,
                without: Collection[tf.Operation] = ()) -> set[tf.Operation]:
    """Returns operations and all that they need; without `controls`, only those whose values they are computed from.

    Operations in `without`, and what only they need, are left out.
    """
    found, pending = set(without), list(operations)
    while pending:
        operation = pending.pop()
        if operation not in found:
            found.add(operation)
            pending += [tensor.op for tensor in operation.inputs]
            pending += operation.control_inputs if controls else []
    return found.difference(without)


_copied = weakref.WeakKeyDictionary()  # graph -> {name scope: the graph whose operations were copied into it}


def note_copy(scope: str, graph: tf.Graph) -> None:
    """Notes that the operations of a graph were copied into a name scope of the current one, for `place_of`."""
    _copied.setdefault(tf.get_default_graph(), {})[scope] = graph


def place_of(name: str, graph: tf.Graph | None = None) -> str:
    """Returns the line of the user's that makes an operation of a graph, by default the current, as `place` does."""
    graph = graph or tf.get_default_graph()
    for scope, copied in _copied.get(graph, {}).items():
        if name.startswith(scope):
            graph, name = copied, name.removeprefix(scope)
    try:
        operation = graph.get_operation_by_name(name)
    except KeyError:  # within a function
        return ''
    return own_files.place((frame.filename, frame.lineno) for frame in operation.traceback)


def check_size(network: str) -> None:
    """Raises a UsageError if the constants of the current graph are more than TensorFlow can write to a file."""
    graph = tf.get_default_graph()
    constants = [operation for operation in graph.get_operations() if operation.type == 'Const']
    sizes = {each.name: each.outputs[0].shape.num_elements() * each.outputs[0].dtype.size for each in constants}
    if sum(sizes.values()) > _MOST_BYTES:  # unless many elements are equal, which take the room of one
        sizes = {name: graph.get_operation_by_name(name).node_def.ByteSize() for name in sizes}
    if (total := sum(sizes.values())) > _MOST_BYTES:
        largest = max(sizes, key=sizes.get)
        raise UsageError(
            f'--network={network}: the constants of all its towers take {total / 1e9:.3g} GB, and TensorFlow cannot '
            f'write more than 2 GB; the largest is {largest} of {sizes[largest] / 1e6:.3g} MB{place_of(largest)}: make '
            'it a variable, which the towers share, tf.get_variable(name, initializer=array, trainable=False)')


class Loader:
    """Gives variables values. Create it before the graph is finalised.

    Args:
      variables: the variables of the current graph that may get values, by their names.
    """

    def __init__(self, variables: Mapping[str, tf.Variable]):
        self._assignments = {}
        with tf.name_scope('load'):
            for name, variable in variables.items():
                value = tf.placeholder(variable.dtype.base_dtype, variable.shape)
                self._assignments[name] = value, variable.assign(value, read_value=False)

    def load(self, session: tf.Session, values: Mapping[str, np.ndarray]) -> None:
        """Gives variables their values, all at once.

        Args:
          values: arrays by the names of their variables, which must be among those given to the constructor.
        """
        assignments = {name: self._assignments[name] for name in values}
        session.run([operation for _, operation in assignments.values()],
                    {value: values[name] for name, (value, _) in assignments.items()})


@contextlib.contextmanager
def cpu_session(graph: tf.Graph | None = None) -> Iterator[tf.Session]:
    """Context with a session that uses no GPU; its graph is the default one, and builds on the CPU.

    The first session of a process that has GPUs sets their memory options for all later ones, so no session that only
    looks at something may have any.

    Args:
      graph: the graph of the session; default: a new one.
    """
    with (graph or tf.Graph()).as_default() as graph, tf.device('/cpu:0'), lasting_cpu_session(graph) as session:
        yield session


def lasting_cpu_session(graph: tf.Graph) -> tf.Session:
    """Returns a session of a graph that uses no GPU, for an object that several threads call."""
    config = tf.ConfigProto(device_count={'GPU': 0}, allow_soft_placement=True)
    keep_order_of_sums(config)
    return tf.Session(graph=graph, config=config)


def keep_order_of_sums(config: tf.ConfigProto) -> None:
    """Configures a session so that equal runs round equally.

    By default the memory optimizer turns a sum of three or more tensors, where it expects memory to peak, into
    additions in the order in which they are ready (TemporaryVariable, AssignAdd). MANUAL leaves out only that; a graph
    without such a sum stays what it was.
    """
    config.graph_options.rewrite_options.memory_optimization = config.graph_options.rewrite_options.MANUAL
