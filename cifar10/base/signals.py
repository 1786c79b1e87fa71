"""The signals that end a program: the first ends a run after the current step, the second ends the process.

Signals belong to the process. Each context here restores the previous handlers.
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

_replaced: list[dict] = []  # the handlers that each `caught` has replaced


def termination_signals() -> list[signal.Signals]:
    """Returns the signals that end a program, except signals that its parent ignores, such as `nohup`.

    Schedulers announce the end of the time limit with SIGUSR1 or SIGUSR2.
    """
    signals = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2
    return [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]


def is_stopped(process: int) -> bool:
    """Returns whether a process of this machine is stopped, by SIGSTOP or Ctrl-Z; only SIGKILL ends it."""
    with contextlib.suppress(OSError), open(f'/proc/{process}/stat') as stream:
        return stream.read().rpartition(') ')[2].startswith('T')
    return False  # it has ended


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Context that restores Python's signal handlers at its end."""
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
    """Context, for the main thread, in which the signals that end a program call a function instead.

    Args:
      notice: function that gets the number of each signal immediately, in a separate thread.
      handler: Python's handler of these signals. The main thread calls it between two Python instructions, which may
        be after a long step.
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
            sender.close()  # ends the thread
            thread.join()


def _restore_in_child():
    """Restores the original handlers in a forked process, such as a worker of a user's pool."""
    if _replaced:
        signal.set_wakeup_fd(-1)
        for number, handler in _replaced[0].items():
            signal.signal(number, handler)


os.register_at_fork(after_in_child=_restore_in_child)


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Context for a program without unsaved state: the first signal raises KeyboardInterrupt with its number.

    The second signal ends the process, even if TensorFlow does not return control to the interpreter.

    Raises:
      KeyboardInterrupt: replaces any other exception that the first signal causes in TensorFlow.
    """
    received: list[int] = []

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
    """Ends a run of `train` gracefully: after the first signal, at the end of the current step, with a checkpoint.

    The second signal ends the process. `train` enters it as a context. Before the run has anything to save, and after
    `train` has returned, the previous handlers apply.

    Attributes:
      requested: the reason for ending the run: the name of a signal, or a text from a callback; None between runs.
      was_requested: `requested` at the end of the last run.
    """

    def __init__(self):
        self.requested = self.was_requested = None
        self._deferring = contextlib.ExitStack()
        self._is_deferring = False

    def __enter__(self):
        if threading.current_thread() is not threading.main_thread():
            raise UsageError('a Termination only works in the main thread; train there, or leave termination out')
        return self

    def __exit__(self, *error):
        self._deferring.close()
        self._is_deferring = False
        self.requested, self.was_requested = None, self.requested

    def defer(self, until: str = 'after this step') -> None:
        """Makes the first signal set `requested` and print a line instead of ending the process.

        Args:
          until: the time when the process will end, for the line.
        """
        def request(number):
            self.requested = signal.Signals(number).name
            with contextlib.suppress(OSError):  # the terminal is gone
                if console.is_terminal():
                    console.say('', '')  # ends the terminal's line with ^C
                console.say('stopping', f'{self.requested}: {until}; another signal ends the process at once')
        if not self._is_deferring:
            self._is_deferring = True
            self._deferring.enter_context(caught(_first(request)))


def _first(act):
    """Returns a function that calls `act` with the first signal; the second signal ends the process."""
    received: list[int] = []

    def notice(number):
        if received:
            os._exit(128 + number)
        received.append(number)
        act(number)
    return notice
