"""Sessions of TensorFlow, and how the loss of a device shows in them."""
import contextlib
from collections.abc import Iterator

import tensorflow.compat.v1 as tf

# What TensorFlow raises when a device was lost, from whatever was running on it: another process that was killed, a
# machine that was preempted. It does not say so of its own GPUs, whose errors are final.
LOST = (tf.errors.AbortedError, tf.errors.UnavailableError)


@contextlib.contextmanager
def opened(target: str = '', config: tf.ConfigProto | None = None) -> Iterator[tf.Session]:
    """Context with a session of the current graph.

    Args:
      target: of the server that the session runs in; '' for one of this process alone.
      config: of the session.
    """
    session = tf.Session(target, config=config)
    try:
        yield session
    finally:
        with contextlib.suppress(*LOST):  # of a device that is gone there is nothing to close
            session.close()
