"""Notices when nothing moves in a training, finds out what it waits for, and ends the process so that it can go on."""
import collections
import contextlib
import os
import re
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence

from cifar10.base import activity, files
from cifar10.base.activity import Question
from cifar10.base.console import say
from cifar10.base.ending import end_process, within
from cifar10.run.folder import STACKS

_TICK_SECS = 1.0
_ANSWER_SECS = 3.0  # in which whatever is asked last must answer; all else has a tenth of the limit more
_WRITE_SECS = 1.5  # in which a line or the stacks must be written; at most 10 s in all, with the last line
_WARN_AT, _ASK_AT = 0.1, 0.9  # of the limit
_WARN_SECS = 3.0  # the least before a warning


class StuckWatch:
    """A context with a thread that ends the process, with status 75, if one of its threads does not move for too long.

    Time in which this process was stopped, suspended or in a debugger does not count.

    Args:
      limit: seconds, for what has no more patience than usual; 0: the process is never ended.
    """

    def __init__(self, limit: float):
        self._limit = limit
        self._stop = threading.Event()
        self._idle = collections.defaultdict(_Idle)

    def __enter__(self):
        if self._limit:
            threading.Thread(target=self._run, name='stuck watch', daemon=True).start()
        return self

    def __exit__(self, *error):
        self._stop.set()

    def _run(self):
        tick = min(_TICK_SECS, self._limit / 20)
        last = time.monotonic()
        while not self._stop.wait(tick):
            now = time.monotonic()
            # After a longer pause this thread was stopped with all others: by a signal, or with the machine.
            elapsed = 0 if _is_debugged() else min(now - last, 2 * tick)
            last = now
            threads = activity.threads()
            for thread in threads:
                self._look_at(thread, elapsed)
            for thread in self._idle.keys() - set(threads):
                del self._idle[thread]

    def _look_at(self, thread, elapsed):
        """Counts the seconds in which a thread has not moved, and warns or ends the process once there are many."""
        idle = self._idle[thread]
        levels = list(thread.doing)
        if thread.moves != idle.moves or not levels:
            if idle.is_warned and not self._stop.is_set():
                _say(f'moving     again after {idle.seconds:.0f} s')
            self._idle[thread] = _Idle(thread.moves)
            return
        idle.seconds += elapsed
        limit = self._limit * levels[-1].patience
        if idle.seconds > _ASK_AT * limit and not idle.asked:
            idle.asked = Asked([level for each in activity.threads() for level in list(each.doing)])
        if idle.seconds > limit:
            self._end(idle.seconds, levels[-1].what, idle.asked)
        if idle.seconds > max(_WARN_AT * limit, _WARN_SECS) and not idle.is_warned:
            idle.is_warned = True
            _say(f'waiting    {idle.seconds:.0f} s {levels[-1].what}; without a move, the process ends after '
                 f'{limit:.0f} s')

    def _end(self, seconds, what, asked):
        """Says what a thread waits for, and ends the process; nothing here may wait without a limit."""
        line = f'stuck      {seconds:.0f} s {what}: {asked.findings()}{_hold()}'
        stacks = _stacks()
        place = within(_WRITE_SECS, lambda: _write(asked.folder, f'{line}\n\n{stacks}'))
        if self._stop.is_set():
            return
        _say(line)
        if not place:
            within(_WRITE_SECS, lambda: sys.stderr.write(stacks))
        end_process(f"nothing has moved for {seconds:.0f} s{f' (stacks of all threads: {place})' if place else ''}; "
                    'start again to continue from the newest checkpoint')


class _Idle:
    """For how many seconds a thread has not moved, since it had moved so many times; and what it may wait for."""

    def __init__(self, moves=-1):
        self.moves = moves
        self.seconds = 0.0
        self.is_warned = False
        self.asked = None


class Asked:
    """Finds out what threads wait for: it asks all that they may wait for, each question in a thread of its own.

    Args:
      levels: what the threads are doing, that of each in its order.

    Attributes:
      folder: the folder of the innermost level that has one, or None.
    """

    def __init__(self, levels: Sequence[activity.Doing]):
        self.folder = next((level.folder for level in reversed(levels) if level.folder), None)
        self._groups = [[_of_folder(self.folder)]] if self.folder else []
        for level in levels:
            if level.questions:
                self._groups += within(_ANSWER_SECS, level.questions) or []
        self._answered = {question: threading.Event() for group in self._groups for question in group}
        self._ask(is_final=False)

    def _ask(self, is_final):
        for question, event in self._answered.items():
            if question.is_final == is_final:
                threading.Thread(target=_ask, args=(question, event), daemon=True).start()

    def findings(self) -> str:
        """Returns a phrase for what does not answer, or if all does, for that. Nothing can go on after it."""
        self._ask(is_final=True)
        deadline = time.monotonic() + _ANSWER_SECS
        for group in self._groups:
            silent = [question for question in group
                      if not self._answered[question].wait(max(deadline - time.monotonic(), 0))]
            if silent:
                return ', '.join(question.silence() for question in silent)
        answering = ', '.join(question.subject for question in self._answered) or 'anything that can be asked'
        return f'it does not wait for {answering}'


def _ask(question, event):
    """Asks a Question; sets the event if it is answered, were it with an error."""
    with contextlib.suppress(Exception):
        if question.ask() is False:
            return
    event.set()


def _of_folder(folder):
    """Returns the Question whether a file system answers, also where something is written."""
    def ask():
        os.statvfs(folder)
        os.listdir(folder)
        made = files.private(os.path.join(folder, STACKS), lambda path: open(path, 'x').close())
        files.sync(made)
        os.remove(made)
    return Question(f'the file system of {folder}', ask, lambda: f'the file system of {folder} does not answer')


def _hold():
    """Returns a phrase if the kernel holds a thread of this process, which no signal ends then; else ''."""
    with contextlib.suppress(OSError):
        for task in os.listdir('/proc/self/task'):
            with open(f'/proc/self/task/{task}/stat') as stream:
                if stream.read().rpartition(') ')[2].startswith('D'):
                    return '; the kernel holds one of its threads, and the process ends when that returns'
    return ''


def _stacks():
    """Returns the stacks of all threads as text. (`faulthandler` would keep all threads waiting while it writes.)"""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return '\n'.join(f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
                     for ident, frame in sys._current_frames().items())


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
    """Says a line, unless nobody reads it."""
    within(_WRITE_SECS, lambda: say(line))


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
