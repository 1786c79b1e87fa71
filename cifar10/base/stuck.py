"""Ends this process with a status for a restart: when no thread makes progress, or when another process is lost."""
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
_ANSWER_SECS = 15.0  # in which other processes must answer
_WRITE_SECS = 2.0  # in which the stacks or a line must be written
_at_end = []  # what is still to be called
_asked = []  # the functions of `asking`


class StuckWatch:
    """A context whose thread ends the process, with status 75, if another thread makes no progress for too long.

    Time in which this process was stopped or suspended does not count.

    Args:
      limit: seconds without progress, for what has the usual patience; 0: the process is never ended.
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
            self._thread.join()  # it may be asking other processes, inside TensorFlow

    def _run(self):
        tick = min(_TICK_SECS, self._limit / 20)
        last = time.monotonic()
        while not self._stop.wait(tick):
            now = time.monotonic()
            # After a longer pause this thread was stopped with all others: by a signal, or with the machine.
            activity.seconds_run += min(now - last, 2 * tick)
            last = now
            for doing in activity.current():
                if activity.seconds_run - doing.since > self._limit * doing.patience:
                    self._end(doing, doing.since)

    def _end(self, doing, since):
        """Ends the process, with the stacks of all threads; nothing here may wait without a limit."""
        silent = filter(None, [within(_ANSWER_SECS, function) for function in _asked])
        if self._stop.is_set() or doing.since != since or doing not in activity.current():
            return  # it has moved meanwhile
        stacks = _stacks()
        within(_WRITE_SECS, lambda: sys.stderr.write(stacks))
        end_process('; '.join([f'no progress for {self._limit * doing.patience:.0f} s ({doing.what})', *silent,
                               'start again to continue from the newest checkpoint']))


def _stacks():
    # A file in memory: no thread can run while the stacks are written, so where nobody reads, none would run again.
    with open(os.memfd_create('stacks'), 'w+') as stream:
        faulthandler.dump_traceback(stream)
        stream.seek(0)
        return stream.read()


@contextlib.contextmanager
def asking(silent: Callable[[], str]) -> Iterator[None]:
    """Context in which a stuck process names those that do not answer; `silent` returns them as a phrase, or ''."""
    _asked.append(silent)
    try:
        yield
    finally:
        _asked.remove(silent)


@contextlib.contextmanager
def calling_at_end(function: Callable[[], Any]) -> Iterator[None]:
    """Context at whose end a function is called, even if `end_process` ends the process within it."""
    _at_end.append(function)
    try:
        yield
    finally:
        _at_end.remove(function)
        function()


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """Returns what a function returns if it takes no longer than some seconds and does not fail, else None."""
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
        below = '\n' if shows_bars() else ''  # the bar that stays
        error = error_on(sys.stderr, os.path.basename(sys.argv[0]), message)
        for stream, text in ((sys.stdout, ''), (sys.stderr, f'{below}{error}\n')):
            with contextlib.suppress(OSError, AttributeError):  # nobody reads it any more, or it is None
                stream.write(text)
                flush(stream)
    try:
        for last in (write, *_at_end):
            within(_WRITE_SECS, last)  # a reader that does not read must not keep the process
    finally:
        os._exit(TemporaryError.status)  # the main thread may be blocked in TensorFlow
