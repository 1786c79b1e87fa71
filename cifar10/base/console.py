"""The console: lines for people, progress bars, and output without a reader.

Below the programs, every line for people goes through `say`, so that a caller of the package can receive or drop it.
Only this module knows whether a stream is a terminal, and how wide it is.
"""
import contextlib
import dataclasses
import datetime
import errno
import os
import shutil
import stat
import sys
import textwrap
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from cifar10.base.activity import moved, unlimited
from cifar10.base.errors import UsageError

STDOUT = 'standard output'  # stands for a file's name in an OSError
# A context for whatever is written for people: a person may stop the output of a terminal.
_INDENT = 11  # columns of the first word of a line, below which the text goes on
_FREE = 3  # columns after a progress bar, where the terminal shows ^C
_BOLD, _RED, _YELLOW = 1, 31, 33
_STYLES = {'warning': _YELLOW, 'error:': _RED}  # of other words: bold


class _Raised(Exception):
    """A callback has raised an exception, its cause. Wrapped, it is not taken for one of the run's own."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A line for people: a padded word that names its subject, and a text. `str` returns it as a file gets it.

    Attributes:
      word: such as 'saved'; '' for a text that stands alone; or the time, for a line in the tutorial's format.
      text: may contain text from elsewhere: a file, a picture's name, another process. Characters in it that could
        control a terminal, or forge a line, become escape sequences.
      note: whether the line belongs to the notes of a result, as each 'warning' does.
    """
    word: str | datetime.datetime
    text: str
    note: bool = False

    @property
    def is_note(self) -> bool:
        """Whether it is a note or a warning."""
        return self.note or self.word == 'warning'

    def __str__(self):
        is_time = isinstance(self.word, datetime.datetime)
        return f'{self.word}: {printable(self.text)}' if is_time or self.word == 'warning' else self._padded(self.word)

    def on(self, stream: TextIO | None) -> str:
        """Returns the line as a stream gets it: on a terminal, wrapped and with a colour, and only the time of day."""
        if not _is_terminal(stream):
            return str(self)
        is_time = isinstance(self.word, datetime.datetime)
        wrapped = _wrapped(self._padded(f'{self.word:%H:%M:%S}' if is_time else self.word))
        return _coloured(wrapped, '' if is_time else self.word)

    def _padded(self, word):
        return f'{word:<{_INDENT - 1}} {printable(self.text)}' if word else printable(self.text)


def error_on(stream: TextIO | None, program: str, message: str) -> str:
    """Returns the line with which a program ends, as a stream gets it."""
    line = Line('', f'{program}: error: {message}').on(stream)
    return _coloured(line, 'error:') if _is_terminal(stream) else line


def _is_terminal(stream):
    """Returns whether a standard stream is a terminal.

    A caller may have replaced it by None, as services do, or by an object that has only `write`.
    """
    return getattr(stream, 'isatty', bool)()


def flush(stream: TextIO | None) -> None:
    """Flushes a standard stream, unless it was closed, or replaced by something that cannot be flushed."""
    with contextlib.suppress(AttributeError, ValueError):
        stream.flush()


def print_line(line: Line) -> None:
    """Prints a line on standard output, above a progress bar if there is one. It is the `say` of programs."""
    try:
        if shows_bars():
            from tqdm import tqdm
            tqdm.write(line.on(sys.stdout), file=sys.stdout)
        else:
            print(line.on(sys.stdout))
        flush(sys.stdout)
    except OSError as error:
        error.filename = STDOUT
        raise


class Output:
    """Where lines for people and the records of metrics.jsonl go, from all threads of the process.

    Args:
      say: function that gets each line as a string. `print` and `print_line` mean standard output, with progress bars
        on standard error; None: the lines are dropped, except for notes, which become Python warnings.
      on_record: function that gets each record once it is written, as a dict; or None.

    Attributes:
      notes: the lines so far that are notes.
      record_seconds: how long `on_record` has taken so far.
      is_closed: whether standard output was closed, as a pipe or a terminal can be, or cannot be written.
      failure: the error in writing to standard output, such as a full disk; None if there was none, or if the reader
        has left. A class attribute.

    Raises:
      UsageError: an argument is not a function.
    """
    _lock = threading.RLock()  # held while an output is used: TensorFlow's settings belong to the process as well
    current: 'Output'
    failure: OSError | None = None

    def __init__(self, say: Callable[[Any], Any] | None = print_line,
                 on_record: Callable[[dict], Any] | None = None):
        for name, function in (('say', say), ('on_record', on_record)):
            if not (function is None or callable(function)):
                raise UsageError(f'{name}={function!r} is not a function; give a function, or None')
        self.notes = []
        self.record_seconds = 0.0
        self.is_closed = False
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
        return self._callback in (print, print_line)

    @property
    def is_log(self) -> bool:
        """Whether lines are to be kept: a program writes them to a file or a pipe. People get fewer log lines."""
        return self._callback is print_line and not _is_terminal(sys.stdout)

    def say(self, line: Line) -> None:
        """Prints a line, above a progress bar if there is one, or passes it to the caller's function."""
        if line.is_note:
            self.notes.append(str(line))
        with unlimited():
            if self.is_stdout:
                print_line(line)
            elif self._callback or line.is_note:
                _call(self._callback or _warn, str(line))

    def record(self, record: dict) -> None:
        """Passes a record on. Call it without holding a lock: the receiver may raise anything, and may take long."""
        if self._on_record:
            begin = time.perf_counter()
            with unlimited():
                _call(self._on_record, record)
            self.record_seconds += time.perf_counter() - begin


Output.current = Output()


def _wrapped(text):
    return textwrap.fill(text, shutil.get_terminal_size().columns, subsequent_indent=' ' * _INDENT,
                         break_long_words=False, break_on_hyphens=False)


def _coloured(text, word):
    """Returns a text with a word of it in colour, unless the user wants none (https://no-color.org)."""
    if not word or os.environ.get('NO_COLOR') or os.environ.get('TERM') == 'dumb':
        return text
    return text.replace(word, f'\x1b[{_STYLES.get(word, _BOLD)}m{word}\x1b[0m', 1)


def _call(callback, argument):
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


def say(word: str | datetime.datetime, text: str, note: bool = False) -> None:
    """Outputs a `Line`."""
    Output.current.say(Line(word, text, note))


def say_all(lines: Iterable[Line | str]) -> None:
    """Prints each line as soon as the iterable yields it; a string that is not a `Line` stands alone."""
    for line in lines:
        Output.current.say(line if isinstance(line, Line) else Line('', line))


def is_terminal() -> bool:
    """Returns whether lines go to standard output, and that is a terminal."""
    return Output.current.is_stdout and _is_terminal(sys.stdout)


def shows_bars() -> bool:
    """Returns whether a progress bar is shown: on a terminal, unless a pipe such as `| tee` takes the lines as well."""
    return Output.current.is_stdout and _is_terminal(sys.stderr) and not stat.S_ISFIFO(os.fstat(1).st_mode)


def progress_bar(*arguments: Any, **options: Any) -> Any:
    """Returns a `tqdm` progress bar on standard error; see `shows_bars`. Each of its updates counts as progress."""
    from tqdm import tqdm

    class Bar(tqdm):
        monitor_interval = 0  # no thread that looks for slow steps and stays: `miniters` is never above 1

        def update(self, n=1):
            moved()
            with unlimited():
                return super().update(n)

        def close(self):
            with unlimited():
                super().close()

        @property
        def format_dict(self):
            """The values that tqdm shows, for a terminal that has some columns less: tqdm itself leaves one free."""
            values = super().format_dict
            return values | dict(ncols=values['ncols'] and max(values['ncols'] + 1 - _FREE, 1))
    with unlimited():
        return Bar(*arguments, file=sys.stderr, disable=not shows_bars(), miniters=1, **options)


def discard(stream: TextIO) -> None:
    """Redirects a stream to /dev/null, once its reader has gone, unless a caller has replaced it."""
    with contextlib.suppress(AttributeError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def open_closed() -> list[int]:
    """Opens the descriptors of standard streams that are closed; returns their numbers.

    Otherwise the next files that are opened would get their numbers, and libraries would print into them.
    """
    closed = []
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:  # it gets the lowest free number
        closed.append(number)
    os.close(number)
    return closed


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """Context for writing to standard output, whose pipe or terminal may be closed: then `Output.is_closed`.

    If a file cannot be written, because its disk is full, the error is kept as `Output.failure`.
    """
    try:
        yield
    except OSError as error:
        if not Output.current.is_stdout:
            raise
        if error.errno != errno.EPIPE and (error.errno != errno.EIO or stat.S_ISREG(os.fstat(1).st_mode)):
            Output.failure = error
        discard(sys.stdout)
        Output.current.is_closed = True
