"""Threads that run the train operations of asynchronous towers beside the loop."""
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

import tensorflow.compat.v1 as tf

from cifar10.base.activity import OF_FIRST_STEP, doing
from cifar10.parallel.session_config import LOST

_GRACE_SECS = 120  # in which a thread ends its step after an error; one that hangs on a lost device is left behind


class AsyncWorkers:
    """Runs train operations over and over, each in a thread of its own. Without operations it does nothing.

    It is for one session: a thread that hangs on a lost device may end long after the next session was made, and must
    not end that one.

    Args:
      train_ops: the operations.
    """

    def __init__(self, train_ops: Sequence[tf.Operation]):
        self._train_ops = train_ops
        self._locks = [threading.Lock() for _ in train_ops]  # each is held while its thread is within a step
        self._may_step = threading.Event()
        self._may_step.set()
        self._ended = False
        self._error = None

    @contextlib.contextmanager
    def stepping(self, session: tf.Session) -> Iterator[None]:
        """Context in which the threads take steps. At its end each thread ends the step that it is in.

        Raises:
          Exception: what has ended a thread.
        """
        threads = [threading.Thread(target=self._step, args=(session, *each), daemon=True)
                   for each in zip(range(1, len(self._train_ops) + 1), self._train_ops, self._locks)]
        for thread in threads:
            thread.start()
        try:
            yield
        except Exception as error:
            self._end(threads, _GRACE_SECS)
            # From the loss of a device the loop recovers, but it may make other threads raise anything.
            if isinstance(self._error, LOST) and not isinstance(error, LOST):
                raise self._error from error
            raise
        self._end(threads)
        self.raise_error()

    def _end(self, threads, seconds=None):
        """Waits until the threads have ended, without limit or for so many seconds."""
        self._ended = True
        begin = time.monotonic()
        for thread in threads:
            thread.join(None if seconds is None else max(begin + seconds - time.monotonic(), 0))

    def _step(self, session, tower, train_op, lock):
        patience = OF_FIRST_STEP
        try:
            while not self._ended and self._error is None:
                self._may_step.wait()
                with lock, doing(f'in a step of tower {tower}', patience):
                    session.run(train_op)
                patience = 1
        except tf.errors.OutOfRangeError:
            pass  # the last batch was taken
        except Exception as error:  # of any type: the main thread raises it
            self._error = error

    def raise_error(self) -> None:
        """Raises what has ended a thread, if anything but the end of the batches has."""
        if self._error is not None:
            raise self._error

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context in which no thread is within a step, so that all variables read or saved in it are of one moment."""
        self._may_step.clear()
        try:
            with contextlib.ExitStack() as held:
                for lock in self._locks:
                    held.enter_context(lock)
                yield
        finally:
            self._may_step.set()
