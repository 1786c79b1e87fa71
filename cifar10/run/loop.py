"""The loop: runs train operations under hooks, in a session that is made again when a device was lost."""
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf


def run(train_step: tf.Tensor, hooks: Sequence[tf.train.SessionRunHook], scaffold: tf.train.Scaffold | None = None,
        target: str = '', config: tf.ConfigProto | None = None,
        before_session: Callable[[], None] | None = None) -> None:
    """Runs a train operation until a hook stops the loop or there is no batch left.

    Args:
      train_step: an operation or tensor; each run of it is a step.
      hooks: called before and after each step, in this order, and at the end unless the end is an error.
      scaffold: how variables are initialised and restored.
      target, config: of the session.
      before_session: called before each session is made.
    """
    creator = _SessionCreator(scaffold or tf.train.Scaffold(), target, config, before_session)
    # The context calls the hooks' `end` after a tf.errors.OutOfRangeError too: the inputs have ended, or in
    # asynchronous training another tower took the last batch.
    with tf.train.MonitoredSession(creator, hooks) as session:
        while not session.should_stop():
            session.run(train_step)


class _SessionCreator(tf.train.SessionCreator):
    """Makes the session, the first one and those that follow the loss of a device; calls a function before that."""

    def __init__(self, scaffold, target, config, before):
        self._creator = tf.train.ChiefSessionCreator(scaffold, target, config)
        self._before = before

    def create_session(self):
        if self._before:
            self._before()
        return self._creator.create_session()
