"""The console: lines for people, progress bars, and output without a reader.

Modules below the programs print through `say`, so callers of the package can receive or drop the lines. Only this
module checks whether a stream is a terminal, and its width.
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

STDOUT = 'standard output'  # the file name in an OSError
_INDENT = 11  # columns of a line's first word; continuation lines are indented as far
_FREE = 3  # columns after a progress bar, where the terminal shows ^C
_BOLD, _RED, _YELLOW = 1, 31, 33
_STYLES = {'warning': _YELLOW, 'error:': _RED}  # the default is bold


class _Raised(Exception):
    """Wraps an exception from a callback, its cause, to distinguish it from the run's exceptions."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A line for people: a padded word for its subject, and a text. `str` returns its form for files.

    Attributes:
      word: the subject, such as 'saved'; '' for a line without a subject; or the time, for a line in the tutorial's
        format.
      text: may contain text from a file, a file name or another process. Characters that could control a terminal, or
        forge a line, become escape sequences.
      note: whether the line belongs to the notes of a result, as every 'warning' does.
    """
    word: str | datetime.datetime
    text: str
    note: bool = False

    @property
    def is_note(self) -> bool:
        """Whether the line is a note or a warning."""
        return self.note or self.word == 'warning'

    def __str__(self):
        is_time = isinstance(self.word, datetime.datetime)
        return f'{self.word}: {printable(self.text)}' if is_time or self.word == 'warning' else self._padded(self.word)

    def on(self, stream: TextIO | None) -> str:
        """Formats the line for a stream: for a terminal, wrapped and coloured, with only the time of day."""
        if not _is_terminal(stream):
            return str(self)
        is_time = isinstance(self.word, datetime.datetime)
        wrapped = _wrapped(self._padded(f'{self.word:%H:%M:%S}' if is_time else self.word))
        return _coloured(wrapped, '' if is_time else self.word)

    def _padded(self, word):
        return f'{word:<{_INDENT - 1}} {printable(self.text)}' if word else printable(self.text)


def error_on(stream: TextIO | None, program: str, message: str) -> str:
    """Formats a program's last error line for a stream."""
    line = Line('', f'{program}: error: {message}').on(stream)
    return _coloured(line, 'error:') if _is_terminal(stream) else line


def _is_terminal(stream):
    """Returns whether a standard stream is a terminal.

    A caller may have replaced the stream with None, as services do, or with an object that only has `write`.
    """
    return getattr(stream, 'isatty', bool)()


def flush(stream: TextIO | None) -> None:
    """Flushes a standard stream, unless it is closed, or was replaced with an object without `flush`."""
    with contextlib.suppress(AttributeError, ValueError):
        getattr(stream, 'flush', bool)()


def print_line(line: Any) -> None:
    """Prints a line to standard output, above any progress bar. Programs use it as `say`."""
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
    """The destination of lines for people and of the records of metrics.jsonl, for all threads of the process.

    Args:
      say: function that gets each line as a string. `print` and `print_line` mean standard output, with progress bars
        on standard error. None drops the lines, except for notes, which become Python warnings.
      on_record: function that gets each record as a dict, after it is written; or None.

    Attributes:
      notes: the notes so far.
      record_seconds: the total time in `on_record`.
      is_closed: whether standard output is a closed pipe or terminal, or not writable.
      failure: the error from writing to standard output, such as a full disk; None if there was none, or if the reader
        has left. A class attribute.

    Raises:
      UsageError: an argument is not a function.
    """
    _lock = threading.RLock()  # held while an output is used; TensorFlow's settings belong to the process, too
    current: 'Output'
    failure: OSError | None = None

    def __init__(self, say: Callable[[Any], Any] | None = print_line,
                 on_record: Callable[[dict], Any] | None = None):
        for name, function in (('say', say), ('on_record', on_record)):
            if not (function is None or callable(function)):
                raise UsageError(f'{name}={function!r} is not a function; give a function, or None')
        self.notes: list[str] = []
        self.record_seconds = 0.0
        self.is_closed = False
        self._callback = say
        self._on_record = on_record

    @contextlib.contextmanager
    def used(self) -> Iterator['Output']:
        """Makes this the output of the process within the context, which raises exceptions of callbacks at its end.

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
        """Whether a program's lines go to a file or a pipe, which gets more log lines than a terminal."""
        return self._callback is print_line and not _is_terminal(sys.stdout)

    def say(self, line: Line) -> None:
        """Prints a line, above any progress bar, or passes it to the caller's function."""
        if line.is_note:
            self.notes.append(str(line))
        with unlimited():
            if self.is_stdout:
                print_line(line)
            elif self._callback or line.is_note:
                _call(self._callback or _warn, str(line))

    def record(self, record: dict) -> None:
        """Passes a record to `on_record`, which may raise any exception or take long. Hold no lock during the call."""
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
    """Returns a text with a coloured word, unless the user has disabled colours (https://no-color.org)."""
    if not word or os.environ.get('NO_COLOR') or os.environ.get('TERM') == 'dumb':
        return text
    return text.replace(word, f'\x1b[{_STYLES.get(word, _BOLD)}m{word}\x1b[0m', 1)


def _call(callback, argument):
    try:
        callback(argument)
    except Exception as error:
        raise _Raised from error


def _warn(line):
    """Issues a Python warning for the line that called this package."""
    modules = [frame.f_globals.get('__name__', '') for frame, _ in traceback.walk_stack(sys._getframe())]
    outermost = max(i for i, module in enumerate(modules) if module.startswith('cifar10.'))
    warnings.warn(line, stacklevel=outermost + 2)


def printable(text: str) -> str:
    """Escapes characters that could control a terminal or forge a line."""
    return ''.join(c if c.isprintable() else c.encode('unicode_escape').decode() for c in text)


def say(word: str | datetime.datetime, text: str, note: bool = False) -> None:
    """Outputs a `Line`."""
    Output.current.say(Line(word, text, note))


def say_all(lines: Iterable[Line | str]) -> None:
    """Outputs each line as soon as the iterable yields it; a string becomes a line without a subject."""
    for line in lines:
        Output.current.say(line if isinstance(line, Line) else Line('', line))


def is_terminal() -> bool:
    """Returns whether lines go to standard output and standard output is a terminal."""
    return Output.current.is_stdout and _is_terminal(sys.stdout)


def shows_bars() -> bool:
    """Returns whether progress bars are shown: on a terminal, unless the lines go to a pipe such as `| tee`."""
    return Output.current.is_stdout and _is_terminal(sys.stderr) and not stat.S_ISFIFO(os.fstat(1).st_mode)


def progress_bar(*arguments: Any, **options: Any) -> Any:
    """Returns a `tqdm` progress bar on standard error; see `shows_bars`. Its updates count as progress."""
    from tqdm import tqdm

    class Bar(tqdm):
        monitor_interval = 0  # no monitor thread, which is useless with `miniters` of 1 and would never end

        def update(self, n=1):
            moved()
            with unlimited():
                return super().update(n)

        def close(self):
            with unlimited():
                super().close()

        @property
        def format_dict(self):
            """tqdm's values, with `_FREE` columns less than the terminal; tqdm itself leaves one column free."""
            values = super().format_dict
            return values | dict(ncols=values['ncols'] and max(values['ncols'] + 1 - _FREE, 1))
    with unlimited():
        return Bar(*arguments, file=sys.stderr, disable=not shows_bars(), miniters=1, **options)


def discard(stream: TextIO) -> None:
    """Redirects a stream without a reader to /dev/null, unless a caller has replaced the stream."""
    with contextlib.suppress(AttributeError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def open_closed() -> list[int]:
    """Opens the descriptors of closed standard streams; returns their numbers.

    Otherwise the next open files would get these numbers, and libraries would print into the files.
    """
    closed = []
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:  # os.open returns the lowest free number
        closed.append(number)
    os.close(number)
    return closed


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """Context for writing to standard output, which sets `Output.is_closed` if the pipe or terminal is closed.

    Other errors, such as a full disk, are stored in `Output.failure`.
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
