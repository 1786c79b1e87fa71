"""Runs the steps of a training: one at a time, or each tower's steps in a separate thread."""
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from cifar10.base.activity import unlimited
from cifar10.base.graphs import LOST

_GRACE_SECS = 120  # the time that threads get to end their steps after an error; a thread may hang on a lost device


class Stepper:
    """Runs steps and yields their results as they arrive.

    With one kind of step, all steps run in the calling thread. With several kinds, one for each tower, each kind has a
    thread, and its next step begins after the caller has consumed its last result.

    A context manager for one session: a thread that hangs on a lost device may outlive the session.

    Args:
      kinds: number of kinds of steps; steps of the same kind run one after another.
    """

    def __init__(self, kinds: int):
        self._idle = list(range(kinds))
        self._begun, self._ended = queue.SimpleQueue[Any](), queue.SimpleQueue[Any]()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(kinds if kinds > 1 else 0)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind, error, traceback):
        for _ in self._threads:
            self._begun.put(None)
        if not isinstance(error, Exception):
            return
        limit = time.monotonic() + _GRACE_SECS
        for thread in self._threads:
            thread.join(max(limit - time.monotonic(), 0))
        # The training loop recovers from a lost device, but the loss may make other threads raise any exception.
        while not isinstance(error, LOST) and not self._ended.empty():
            if isinstance(other := self._ended.get()[2], LOST):
                raise other from error

    def results(self, step: int, begin: Callable[[int, int], Callable[[], Any] | None],
                awaits: Callable[[int], bool] = lambda step: False) -> Iterator[Any]:
        """Yields the results of the steps after `step`, until no step is left.

        Args:
          begin: function (kind, step number) -> the function that runs this step and returns its results; None if no
            step may begin now. The results of concurrent steps may arrive in any order.
          awaits: function (number of the newest step) -> whether the next step must wait until the caller has consumed
            its results.

        Raises:
          Exception: raised by a step.
        """
        begun = step
        while True:
            while not (begun > step and awaits(begun)) and self._idle and (take := begin(self._idle[0], begun + 1)):
                self._begun.put((self._idle.pop(0), take))
                begun += 1
            if begun == step:
                return
            kind, results = self._next()
            yield results
            step += 1
            self._idle.append(kind)

    def _next(self):
        if not self._threads:
            kind, take = self._begun.get()
            return kind, take()
        with unlimited():  # the threads report their own activity
            kind, results, error = self._ended.get()
        if error:
            raise error
        return kind, results

    def _work(self):
        while begun := self._begun.get():
            kind, take = begun
            results = error = None
            try:
                results = take()
            except Exception as raised:  # any type: the caller raises it again
                error = raised
            self._ended.put((kind, results, error))
