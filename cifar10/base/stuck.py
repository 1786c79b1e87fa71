"""Ends this process with a status for a restart if a thread makes no progress, or if another process is lost."""
import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from cifar10.base import activity
from cifar10.base.console import error_on, flush, shows_bars
from cifar10.base.errors import TemporaryError

_TICK_SECS = 1.0
_ANSWER_SECS = 15.0  # time limit for answers of other processes
_WRITE_SECS = 2.0  # time limit for writing the stacks or a line
_at_end: list[Callable[[], Any]] = []  # the pending functions of `calling_at_end`
_asked: list[Callable[[], str]] = []  # the functions of `asking`


class StuckWatch:
    """A context with a thread that ends the process, with status 75, if another thread makes no progress for too long.

    Time while this process is stopped or suspended does not count.

    Args:
      limit: maximum seconds without progress, for a patience of 1; 0: no limit.
    """

    def __init__(self, limit: float):
        self._limit = limit
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name='stuck watch', daemon=True)

    def __enter__(self):
        if self._limit:
            self._thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        if self._limit:
            self._thread.join()  # it may be inside TensorFlow, asking other processes

    def _run(self):
        tick = min(_TICK_SECS, self._limit / 20)
        last = time.monotonic()
        while not self._stop.wait(tick):
            now = time.monotonic()
            # A longer pause means that the whole process was stopped, by a signal or with the machine.
            activity.seconds_run += min(now - last, 2 * tick)
            last = now
            for doing in activity.current():
                if activity.seconds_run - doing.since > self._limit * doing.patience:
                    self._end(doing, doing.since)

    def _end(self, doing, since):
        """Prints the stacks of all threads and ends the process; all its calls need time limits."""
        silent = filter(None, [within(_ANSWER_SECS, function) for function in _asked])
        if self._stop.is_set() or doing.since != since or doing not in activity.current():
            return  # there was progress meanwhile
        stacks = _stacks()
        within(_WRITE_SECS, lambda: sys.stderr.write(stacks))
        end_process('; '.join([f'no progress for {self._limit * doing.patience:.0f} s ({doing.what})', *silent,
                               'start again to continue from the newest checkpoint']))


def _stacks():
    # A file in memory: no thread runs while the stacks are written, so a pipe without a reader would block forever.
    with open(os.memfd_create('stacks'), 'w+') as stream:
        faulthandler.dump_traceback(stream)
        stream.seek(0)
        return stream.read()


@contextlib.contextmanager
def asking(silent: Callable[[], str]) -> Iterator[None]:
    """Context in which a stuck process names silent processes; `silent` returns them as a phrase, or ''."""
    _asked.append(silent)
    try:
        yield
    finally:
        _asked.remove(silent)


@contextlib.contextmanager
def calling_at_end(function: Callable[[], Any]) -> Iterator[None]:
    """Context that calls a function at its end, even if `end_process` ends the process within it."""
    _at_end.append(function)
    try:
        yield
    finally:
        _at_end.remove(function)
        function()


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """Returns the result of a function; None if it fails or exceeds a time limit."""
    results = []

    def call():
        with contextlib.suppress(Exception):
            results.append(function())
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None


def end_process(message: str) -> NoReturn:
    """Ends this process from any of its threads, with a message and the status of a TemporaryError."""
    def write():
        below = '\n' if shows_bars() else ''  # below the progress bar
        error = error_on(sys.stderr, os.path.basename(sys.argv[0]), message)
        for stream, text in ((sys.stdout, ''), (sys.stderr, f'{below}{error}\n')):
            with contextlib.suppress(OSError, AttributeError):  # the reader has left, or the stream is None
                stream.write(text)
                flush(stream)
    try:
        for last in (write, *_at_end):
            within(_WRITE_SECS, last)  # a blocked reader must not keep the process alive
    finally:
        os._exit(TemporaryError.status)  # the main thread may be blocked in TensorFlow
