"""Threads that run the train operations of asynchronous towers beside the loop."""
import contextlib
import threading
from collections.abc import Iterator, Sequence

import tensorflow.compat.v1 as tf


class AsyncWorkersHook(tf.train.SessionRunHook):
    """Runs train operations over and over, each in a thread of its own, beside the loop that has the hooks.

    An error in a thread ends the loop with it. Comes before the hooks that save or evaluate at the end.

    Args:
      async_train_ops: the operations; there may be none.
    """

    def __init__(self, async_train_ops: Sequence[tf.Operation]):
        self._train_ops = async_train_ops
        self._threads, self._locks = [], []

    def after_create_session(self, session, coord):
        self._may_step, self._ended = threading.Event(), False
        self._may_step.set()
        self._locks = [threading.Lock() for _ in self._train_ops]
        self._threads = [threading.Thread(target=self._work, args=(session, coord, *pair), daemon=True)
                         for pair in zip(self._train_ops, self._locks)]
        for thread in self._threads:
            coord.register_thread(thread)
            thread.start()

    def _work(self, session, coord, train_op, lock):
        with coord.stop_on_exception(), contextlib.suppress(tf.errors.OutOfRangeError):  # the last batch was taken
            while not (self._ended or coord.should_stop()):
                self._may_step.wait()
                with lock:
                    session.run(train_op)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context in which no thread is within a step, so that what is saved belongs together."""
        if self._threads:
            self._may_step.clear()
        try:
            with contextlib.ExitStack() as held:
                for lock in self._locks:
                    held.enter_context(lock)
                yield
        finally:
            if self._threads:
                self._may_step.set()

    def end(self, session):
        """Waits until the threads have ended, each after the step that it is in."""
        self._ended = True
        for thread in self._threads:
            thread.join()
