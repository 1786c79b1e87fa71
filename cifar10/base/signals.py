"""The signals that end a program: the first ends a run after the current step, the second ends the process.

Signals belong to the process. Each context here gives them back as it found them.
"""
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from cifar10.base import console
from cifar10.base.errors import RunError, UsageError

_replaced = []  # the handlers that each `caught` has replaced


def termination_signals() -> list[signal.Signals]:
    """Returns the signals that end a program, without those that its parent, such as `nohup`, has ignored for it.

    Schedulers announce the end of the time limit by SIGUSR1 or SIGUSR2.
    """
    signals = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2
    return [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]


def is_stopped(process: int) -> bool:
    """Returns whether a process of this machine is stopped, as by SIGSTOP or Ctrl-Z, so that it acts on SIGKILL alone.
    """
    with contextlib.suppress(OSError), open(f'/proc/{process}/stat') as stream:
        return stream.read().rpartition(') ')[2].startswith('T')
    return False  # it has ended


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Context after which Python's signal handlers are as before it."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # no other thread can change them
            for number, handler in before.items():
                if signal.getsignal(number) != handler:
                    signal.signal(number, handler or signal.SIG_DFL)


@contextlib.contextmanager
def caught(notice: Callable[[int], Any], handler: Callable = lambda number, frame: None) -> Iterator[None]:
    """Context, for the main thread, in which signals that end a program call a function instead.

    Args:
      notice: function that gets the number of each signal at once, in a thread of its own.
      handler: Python's handler of these signals. The main thread calls it between two of Python's instructions, so
        only after a long step.
    """
    numbers = termination_signals()
    depth, before = len(_replaced), -1
    receiver, sender = socket.socketpair()  # the interpreter writes the number of each signal
    sender.setblocking(False)

    def watch():
        while received := receiver.recv(1):
            if received[0] in numbers:
                notice(received[0])
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    with receiver, restored():
        try:
            before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
            _replaced.append({number: signal.signal(number, handler) for number in numbers})
            yield
        finally:
            del _replaced[depth:]
            signal.set_wakeup_fd(before)
            sender.close()  # which ends the thread
            thread.join()


def _give_back():
    """Gives a forked process, such as a worker of a user's pool, the signals that its program had."""
    if _replaced:
        signal.set_wakeup_fd(-1)
        for number, handler in _replaced[0].items():
            signal.signal(number, handler)


os.register_at_fork(after_in_child=_give_back)


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Context of a program that has nothing to save: the first signal raises KeyboardInterrupt with its number.

    The second one ends the process, even while TensorFlow does not return control to the interpreter.

    Raises:
      KeyboardInterrupt: for whatever TensorFlow made of the first one, too.
    """
    received = []

    def interrupt(number, frame):
        raise KeyboardInterrupt(number)
    try:
        with caught(_first(received.append), interrupt):
            yield
    except (UsageError, RunError, OSError):
        raise
    except BaseException as error:
        if received:
            raise KeyboardInterrupt(*received) from error
        raise


class Termination:
    """Ends a run of `train` in good order: the first signal after the current step, with a checkpoint.

    The second signal ends the process. `train` enters it as a context. Until the run has something to save, and after
    `train` has returned, signals do what they did before.

    Attributes:
      requested: why the run is to end: the name of a signal, or a text that a callback sets; None between runs.
      was_requested: `requested` at the end of the last run.
    """

    def __init__(self):
        self.requested = self.was_requested = None
        self._deferring = contextlib.ExitStack()
        self._is_deferring = False

    def __enter__(self):
        if threading.current_thread() is not threading.main_thread():
            raise UsageError('a Termination works in the main thread only, which gets the signals; train there, or '
                             'leave termination out')
        return self

    def __exit__(self, *error):
        self._deferring.close()
        self._is_deferring = False
        self.requested, self.was_requested = None, self.requested

    def defer(self, until: str = 'after this step') -> None:
        """From now on, the first signal only sets `requested` and prints when the process will end.

        Args:
          until: when that is, for the printed line.
        """
        def request(number):
            self.requested = signal.Signals(number).name
            with contextlib.suppress(OSError):  # the terminal is gone
                if console.is_terminal():
                    console.say('', '')  # ends the line where it has shown ^C
                console.say('stopping', f'{self.requested}: {until}; another signal ends the process at once')
        if not self._is_deferring:
            self._is_deferring = True
            self._deferring.enter_context(caught(_first(request)))


def _first(act):
    """Returns a function that passes its first argument, a signal, to another one; the second ends the process."""
    received = []

    def notice(number):
        if received:
            os._exit(128 + number)
        received.append(number)
        act(number)
    return notice
