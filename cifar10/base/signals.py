"""SIGINT, SIGTERM and SIGHUP: the first signal stops a run gracefully, the second one at once."""
import contextlib
import os
import signal
import socket
import threading

from cifar10.base import console
from cifar10.base.errors import UsageError


def termination_signals() -> list[signal.Signals]:
    """Returns the signals that end a program, without those that its parent, such as `nohup`, has ignored for it."""
    signals = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    return [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]


def is_stopped(process: int) -> bool:
    """Returns whether a process of this machine is stopped, as by SIGSTOP or Ctrl-Z, so that it acts on SIGKILL alone.
    """
    with contextlib.suppress(OSError), open(f'/proc/{process}/stat') as stream:
        return stream.read().rpartition(') ')[2].startswith('T')
    return False  # it has ended


class Termination:
    """Handles the termination signals: the first requests a graceful end, the second ends the process at once.

    Before `defer()` is called there is nothing to save, so the first signal raises KeyboardInterrupt, as soon
    as the interpreter runs Python code again; the second one does not wait for that.

    To be made in the main thread. As a context, it gives the signals back to those who handled them before; a program
    need not use it as one, because it ends.

    Attributes:
      requested: the name of the first signal after `defer()`, for the training loop; None until it arrives.
      interrupted: the number of a signal that arrived before `defer()`, or None. A class attribute, because
        signals belong to the process.
    """
    interrupted = None

    def __init__(self):
        if threading.current_thread() is not threading.main_thread():
            raise UsageError('Termination() works in the main thread only, which gets the signals; make it there, or '
                             'leave termination out')
        self.requested = None
        self._until = None  # when the process ends after a signal; None: at once
        self._interrupt_pending = False  # a signal arrived before defer(), and its handler may not have run yet
        # Python runs signal handlers between two of its own instructions, so not during a long step. A thread
        # learns of a signal at once, from the byte that the interpreter writes to this socket.
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._handlers_before = {number: signal.signal(number, self._handle) for number in termination_signals()}
        threading.Thread(target=self._watch, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for number, handler in self._handlers_before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._sender.close()  # which ends the thread

    def defer(self, until: str = 'after this step') -> None:
        """From now on, the first signal only sets `requested` and prints when the process will end.

        Args:
          until: when that is, for the printed line.
        """
        self._until = until

    def _handle(self, number, frame):
        del frame
        if self._until is None:
            Termination.interrupted = number
            raise KeyboardInterrupt

    def _watch(self):
        while True:
            received = self._receiver.recv(1)
            if not received:
                return
            number, = received
            if number not in self._handlers_before:
                continue  # of another handler
            if self.requested or (self._interrupt_pending and self._until is None):
                os._exit(128 + number)
            if self._until is None:
                # The handler raises KeyboardInterrupt once TensorFlow returns control to the interpreter.
                self._interrupt_pending = True
                continue
            self.requested = signal.Signals(number).name
            with contextlib.suppress(OSError):  # the terminal is gone
                if console.is_terminal():
                    console.say('', '')  # ends the line where it has shown ^C
                console.say('stopping', f'{self.requested}: {self._until}; another signal ends the process at once')
