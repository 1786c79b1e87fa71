"""Ends a process from any of its threads, because the main one may be blocked in TensorFlow."""
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from cifar10.base.console import shows_bars
from cifar10.base.errors import TemporaryError

_WRITE_SECS = 2.0  # in which the last line must be written
_at_end = []  # what is still to be called


@contextlib.contextmanager
def calling_at_end(function: Callable[[], Any]) -> Iterator[None]:
    """Context at whose end a function is called, also if `end_process` ends the process within it."""
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
    """Ends this process with a message, which a TemporaryError might have, and with the status of one."""
    line = f'{os.path.basename(sys.argv[0])}: error: {message}\n'

    def write():
        below = '\n' if shows_bars() else ''  # the bar that stays
        for stream, text in ((sys.stdout, ''), (sys.stderr, below + line)):
            with contextlib.suppress(OSError):  # nobody reads it any more
                stream.write(text)
                stream.flush()
    try:
        for last in (write, *_at_end):
            within(_WRITE_SECS, last)  # a reader that does not read must not keep the process
    finally:
        os._exit(TemporaryError.status)
