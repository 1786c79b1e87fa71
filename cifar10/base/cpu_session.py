"""The session in which small graphs are run that belong to no training, such as a look at some images."""
import contextlib
from collections.abc import Iterator

import tensorflow.compat.v1 as tf


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
    """Configures a session so that equal runs round alike.

    By default the memory optimizer turns a sum of three or more tensors, where it expects memory to peak, into
    additions in the order in which they are ready (TemporaryVariable, AssignAdd). MANUAL leaves out only that; a graph
    without such a sum stays what it was.
    """
    config.graph_options.rewrite_options.memory_optimization = config.graph_options.rewrite_options.MANUAL
