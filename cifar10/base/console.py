"""The console: lines for people, progress bars, and output without a reader.

Below the programs, every line for people goes through `say`, so that a caller of the package can receive or drop it.
"""
import contextlib
import errno
import functools
import math
import os
import stat
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from cifar10.base.activity import doing, moved
from cifar10.base.errors import UsageError

STDOUT = 'standard output'  # stands for a file's name in an OSError
# A context for whatever is written for people: a person may stop the output of a terminal.
_WRITING = functools.partial(doing, 'while nobody reads its output', math.inf)


class _Raised(Exception):
    """A callback has raised an exception, its cause. Wrapped, it is not taken for one of the run's own."""


class Line(str):
    """A line for people, as it is printed: a padded word that names its subject, and a text.

    Args:
      word: such as 'saved'; '' for a text that stands alone.
      text: may contain text from elsewhere: a file, a picture's name, another process. Characters in it that could
        control a terminal, or forge a line, become escape sequences.
      note: whether the line belongs to the notes of a result, as each 'warning' does.
    """
    word: str
    text: str
    is_note: bool

    def __new__(cls, word: str, text: str, note: bool = False):
        text = printable(text)
        line = super().__new__(cls, f'warning: {text}' if word == 'warning' else f'{word:<10} {text}' if word else text)
        line.word, line.text, line.is_note = word, text, note or word == 'warning'
        return line


class Output:
    """Where lines for people and the records of metrics.jsonl go, from all threads of the process.

    Args:
      say: function that gets each `Line`. `print` means standard output, with progress bars on standard error;
        None: the lines are dropped, except for notes, which become Python warnings.
      on_record: function that gets each record once it is written, as a dict; or None.

    Attributes:
      notes: the lines so far that are notes.
      failure: the error in writing to standard output, such as a full disk; None if there was none, or if the reader
        has left. A class attribute.

    Raises:
      UsageError: an argument is not a function.
    """
    _lock = threading.RLock()  # held while an output is used: TensorFlow's settings belong to the process as well
    current: 'Output'
    failure: OSError | None = None

    def __init__(self, say: Callable[[str], Any] | None = print, on_record: Callable[[dict], Any] | None = None):
        for name, function in (('say', say), ('on_record', on_record)):
            if not (function is None or callable(function)):
                raise UsageError(f'{name}={function!r} is not a function; give a function, or None')
        self.notes = []
        self._callback = say
        self._on_record = on_record

    @contextlib.contextmanager
    def used(self) -> Iterator['Output']:
        """Context in which this is the output of the process. At its end, it raises what a callback raised.

        Raises:
          UsageError: another thread is using an output.
        """
        if not self._lock.acquire(blocking=False):
            raise UsageError('another thread of this process is training or evaluating; wait for it, or use another '
                             'process')
        previous, Output.current = Output.current, self
        raised = None
        try:
            yield self
        except _Raised as wrapped:
            raised = wrapped.__cause__
        finally:
            Output.current = previous
            self._lock.release()
        if raised:
            raise raised

    @property
    def is_stdout(self) -> bool:
        """Whether lines go to standard output."""
        return self._callback is print

    def say(self, line: Line) -> None:
        """Prints a line, above a progress bar if there is one, or passes it to the caller's function."""
        if line.is_note:
            self.notes.append(line)
        with _WRITING():
            if self.is_stdout:
                _print(line)
            elif self._callback or line.is_note:
                _call(self._callback or _warn, line)

    def record(self, record: dict) -> None:
        """Passes a record on. Call it without holding a lock: the receiver may raise anything, and may take long."""
        with doing('while its caller takes a record', math.inf):
            _call(self._on_record, record)


Output.current = Output()


def _print(line):
    try:
        if shows_bars():
            from tqdm import tqdm
            tqdm.write(line, file=sys.stdout)
        else:
            print(line)
        sys.stdout.flush()
    except OSError as error:
        error.filename = STDOUT
        raise


def _call(callback, argument):
    """Calls a callback, if there is one, and wraps what it raises."""
    if callback:
        try:
            callback(argument)
        except Exception as error:
            raise _Raised from error


def _warn(line):
    """Issues a Python warning for the line that called this package, however deep in the package this is."""
    modules = [frame.f_globals.get('__name__', '') for frame, _ in traceback.walk_stack(sys._getframe())]
    outermost = max(i for i, module in enumerate(modules) if module.startswith('cifar10.'))
    warnings.warn(line, stacklevel=outermost + 2)


def printable(text: str) -> str:
    """Returns a text with each character that could control a terminal, or forge a line, as an escape sequence."""
    return ''.join(c if c.isprintable() else c.encode('unicode_escape').decode() for c in text)


def say(word: str, text: str, note: bool = False) -> None:
    """Outputs a `Line`."""
    Output.current.say(Line(word, text, note))


def say_all(lines: Iterable[str]) -> None:
    """Prints each line as soon as the iterable yields it; a string that is not a `Line` stands alone."""
    for line in lines:
        Output.current.say(line if isinstance(line, Line) else Line('', line))


def is_terminal() -> bool:
    """Returns whether lines go to standard output, and that is a terminal."""
    return Output.current.is_stdout and sys.stdout.isatty()


def shows_bars() -> bool:
    """Returns whether a progress bar is shown: on a terminal, unless a pipe such as `| tee` takes the lines as well."""
    return Output.current.is_stdout and sys.stderr.isatty() and not stat.S_ISFIFO(os.fstat(1).st_mode)


def progress_bar(*arguments: Any, **options: Any) -> Any:
    """Returns a `tqdm` progress bar on standard error; see `shows_bars`. Each of its updates counts as progress."""
    from tqdm import tqdm

    class Bar(tqdm):
        monitor_interval = 0  # no thread that looks for slow steps and stays: `miniters` is never above 1

        def update(self, n=1):
            moved()
            with _WRITING():
                return super().update(n)

        def close(self):
            with _WRITING():
                super().close()
    with _WRITING():
        return Bar(*arguments, file=sys.stderr, disable=not shows_bars(), miniters=1, **options)


def discard(stream: TextIO) -> None:
    """Redirects a stream to /dev/null, once its reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def reader_may_leave(left: Callable[[], Any] = lambda: None) -> Iterator[None]:
    """Context for writing to standard output, whose pipe or terminal may be closed; `left` is then called.

    `left` is also called if a file cannot be written, because its disk is full; the error is kept as `Output.failure`.
    """
    try:
        yield
    except OSError as error:
        if not Output.current.is_stdout:
            raise
        if error.errno != errno.EPIPE and (error.errno != errno.EIO or stat.S_ISREG(os.fstat(1).st_mode)):
            Output.failure = error
        discard(sys.stdout)
        left()
