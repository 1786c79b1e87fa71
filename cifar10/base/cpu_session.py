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
    return tf.Session(graph=graph, config=tf.ConfigProto(device_count={'GPU': 0}, allow_soft_placement=True))
