"""Runs a program and returns its exit status; prints errors as one line on standard error, without a traceback.

This module must not import TensorFlow, so that `--help` and errors about flags appear immediately.
"""
import contextlib
import importlib.metadata
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

import cifar10
from cifar10.base import startup
from cifar10.base.console import STDOUT, Line, Output, discard, error_on, open_closed
from cifar10.base.errors import RunError, UsageError, describe_os_error, listed
from cifar10.base.signals import termination_signals

# Exit statuses of programs that end without an error. Errors have a `status`.
FINISHED = 0
STOPPED = 3  # by a signal, after saving; the run is not finished
UNREAD = 128 + signal.SIGPIPE  # the output is closed; shells report the same status for other programs

_PATIENCE = 1.0  # seconds that Python usually needs to exit


def run(main: Callable[[], int | None], to_end: bool = False) -> int:
    """Calls a program's `main` and returns the exit status of the process.

    Args:
      to_end: whether the process exits after `main`. The first later signal then ends it, with this status. Python
        waits for non-daemon threads that user code started; a line names them if the wait is long.

    Returns:
      The result of `main`, or FINISHED; the status of a UsageError, RunError or TemporaryError; 1 after an error of the
      operating system; UNREAD; 128 + the number of a signal that arrived before there was anything to save.
    """
    _reopen_closed()
    startup.own_process()
    os.umask(os.umask(0o002) | 0o002)  # a resumed run does not trust world-writable files
    # Flushes each line to files and pipes, too, and escapes file names that cannot be encoded.
    sys.stdout.reconfigure(  # type: ignore[union-attr]  # the stubs only declare the methods of all text streams
        line_buffering=True, errors='backslashreplace')
    try:
        status = main() or FINISHED
        if status == UNREAD and Output.failure:
            raise Output.failure
    except (UsageError, RunError) as error:
        status = _fail(error, error.status)
    except BrokenPipeError:
        discard(sys.stdout)  # the reader is gone
        status = UNREAD
    except OSError as error:
        if error.filename == STDOUT:
            discard(sys.stdout)  # otherwise Python would retry the unwritten output
        status = _fail(describe_os_error(error), RunError.status)
    except KeyboardInterrupt as error:
        number, = error.args or [signal.SIGINT]
        status = _fail('interrupted before there was anything to save', 128 + number)
    if to_end:
        for number in termination_signals():
            signal.signal(number, lambda *event: os._exit(status))
        waiting = threading.Timer(_PATIENCE, _name_threads)
        waiting.daemon = True
        waiting.start()
    return status


def _name_threads():
    # A file that is executed again starts its threads again.
    names = sorted({thread.name for thread in threading.enumerate()
                    if not thread.daemon and thread is not threading.main_thread()})
    if names:
        line = Line('waiting', f'for a thread of your code to end: {listed(names)}; a signal ends the process')
        print(line.on(sys.stderr), file=sys.stderr, flush=True)


def name() -> str:
    """Returns the name of the running program: its file or command, or `python -m cifar10` with its name."""
    folder, file = os.path.split(sys.argv[0])
    return f'python -m {os.path.basename(folder)}' if file == '__main__.py' else file


def versions() -> str:
    """Returns a line with the versions of this package, TensorFlow and Python, without importing TensorFlow."""
    try:
        tensorflow = importlib.metadata.version('tensorflow')
    except importlib.metadata.PackageNotFoundError:  # not by this name
        tensorflow = 'of an unknown version'
    return f'cifar10 {cifar10.__version__}, TensorFlow {tensorflow}, Python {platform.python_version()}'


@contextlib.contextmanager
def stdout_for_json(is_asked: bool) -> Iterator[TextIO]:
    """Reserves standard output for JSON if `is_asked`: other output to it goes to standard error.

    It redirects the file descriptor, because user code may start programs, and C++ does not write through Python.
    """
    if not is_asked:
        yield sys.stdout
        return
    sys.stdout.flush()
    with open(os.dup(1), 'w', buffering=1, errors='backslashreplace') as kept:
        os.dup2(2, 1)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield kept
        finally:
            os.dup2(kept.fileno(), 1)


def _reopen_closed():
    """Opens the standard streams that were closed when the process started (`>&-`)."""
    closed = open_closed()
    if 2 in closed:
        os.dup2(1, 2)
    for number, stream in ((1, 'stdout'), (2, 'stderr')):
        if number in closed:
            setattr(sys, stream, open(number, 'w', buffering=1, errors='backslashreplace', closefd=False))
    if 1 in closed:
        print(f'{name()}: warning: standard output is closed, so only errors are shown', file=sys.stderr)


def _fail(message, status):
    try:
        print(error_on(sys.stderr, name(), ' '.join(str(message).split())), file=sys.stderr, flush=True)
    except OSError:  # the terminal is gone
        discard(sys.stdout)
        discard(sys.stderr)
    return status
