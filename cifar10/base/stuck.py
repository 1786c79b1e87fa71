"""Notices when this process makes no progress, prints what it was doing, and ends it so that it can be restarted."""
import contextlib
import faulthandler
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from cifar10.base import activity, files
from cifar10.base.console import Line, flush, say_all, shows_bars
from cifar10.base.errors import TemporaryError

STACKS = 'stuck.txt'  # what the threads of a process that made no progress were doing
_TICK_SECS = 1.0
_WARN_AT, _WARN_SECS = 0.1, 3.0  # of the limit, and the least before a warning
_ANSWER_SECS = 15.0  # in which other processes must answer
_WRITE_SECS = 2.0  # in which a line or the stacks must be written
_at_end = []  # what is still to be called


class StuckWatch:
    """A context whose thread ends the process, with status 75, if another thread makes no progress for too long.

    Time in which this process was stopped, suspended or in a debugger does not count.

    Args:
      limit: seconds without progress, for what has the usual patience; 0: the process is never ended.
    """

    def __init__(self, limit: float):
        self._limit = limit
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name='stuck watch', daemon=True)
        self._warned = {}  # since when each thread that a line has reported has made no progress

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
            activity.seconds_run += 0 if _is_debugged() else min(now - last, 2 * tick)
            last = now
            for thread in activity.threads():
                self._look_at(thread)

    def _look_at(self, thread):
        """Warns or ends the process if a thread has not moved for long."""
        levels = list(thread.doing)
        since = thread.since
        if not levels:
            return
        idle, limit = activity.seconds_run - since, self._limit * levels[-1].patience
        if (before := self._warned.get(thread, since)) != since:
            del self._warned[thread]
            _say(Line('moving', f'again after {since - before:.0f} s'))
        elif idle > limit:
            self._end(thread, since, f'{idle:.0f} s', levels[-1].what)
        elif idle > max(_WARN_AT * limit, _WARN_SECS) and thread not in self._warned:
            self._warned[thread] = since
            _say(Line('waiting', f'{idle:.0f} s {levels[-1].what}; without progress, the process ends after '
                                 f'{limit:.0f} s'))

    def _end(self, thread, since, seconds, what):
        """Says what a thread was doing, and ends the process; nothing here may wait without a limit."""
        levels = [level for each in activity.threads() for level in list(each.doing)]
        silent = [within(_ANSWER_SECS, level.silent) for level in levels if level.silent]
        if self._stop.is_set() or thread.since != since:
            return  # it has moved meanwhile
        line = Line('stuck', f"{seconds} {'; '.join([what, *filter(None, silent)])}")
        stacks = _stacks()
        folder = next((level.folder for level in levels if level.folder), None)
        place = within(_WRITE_SECS, lambda: _write(folder, f'{line}\n\n{stacks}'))
        _say(line)
        if not place:
            within(_WRITE_SECS, lambda: sys.stderr.write(stacks))
        end_process(f"no progress for {seconds}{f' (stacks of all threads: {place})' if place else ''}; start "
                    'again to continue from the newest checkpoint')


def _stacks():
    """Returns the stacks of all threads as text."""
    # A file in memory: no thread can run while the stacks are written, so where a disk hangs, none would run again.
    with open(os.memfd_create(STACKS), 'w+') as stream:
        faulthandler.dump_traceback(stream)
        stream.seek(0)
        return stream.read()


def _write(folder, text):
    """Writes the stacks of the threads into a folder, or where that is None, a temporary file; returns its path."""
    if folder:
        path = os.path.join(folder, STACKS)
        descriptor = files.opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    else:  # such as in a task of a cluster that is not the chief
        descriptor, path = tempfile.mkstemp('.txt', 'stuck-')
    with open(descriptor, 'w') as stream:
        stream.write(text)
    return path


def _say(line):
    """Prints a line, unless nobody reads it."""
    within(_WRITE_SECS, lambda: say_all([line]))


def _is_debugged():
    """Returns whether a debugger has this process: another one such as gdb, or one of Python."""
    # Of VS Code and PyCharm. A notebook has the module as well, for a debugger that may come.
    pydevd = sys.modules.get('pydevd')
    if hasattr(pydevd, 'get_global_debugger') and pydevd.get_global_debugger():
        return True
    if 'bdb' in sys.modules and any(frame.f_trace for frame in sys._current_frames().values()):
        return True
    with contextlib.suppress(OSError), open('/proc/self/status') as stream:
        return not re.search(r'TracerPid:\s*0\n', stream.read())
    return False  # no file can be opened any more


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
    line = Line.of_error(os.path.basename(sys.argv[0]), message)

    def write():
        below = '\n' if shows_bars() else ''  # the bar that stays
        for stream, text in ((sys.stdout, ''), (sys.stderr, f'{below}{line.on(sys.stderr)}\n')):
            with contextlib.suppress(OSError, AttributeError):  # nobody reads it any more, or it is None
                stream.write(text)
                flush(stream)
    try:
        for last in (write, *_at_end):
            within(_WRITE_SECS, last)  # a reader that does not read must not keep the process
    finally:
        os._exit(TemporaryError.status)  # the main thread may be blocked in TensorFlow
