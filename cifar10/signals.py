"""SIGINT, SIGTERM and SIGHUP: an orderly end on the first signal, an immediate one on the second."""
import contextlib
import os
import signal
import socket
import sys
import threading


def ending() -> list[signal.Signals]:
    """Returns the signals that ask for the end: SIGHUP, of a terminal that was closed, unless it is ignored (nohup)."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


class Termination:
    """The signals of `ending`: the first asks for an orderly end, the second ends the process at once.

    Until `defer()` there is nothing to save, and the first signal ends the process as well, as soon as the
    interpreter gets to it; the second does not wait for that.

    Attributes:
      requested: the name of the first signal after `defer()`, for the loop to see; None before it.
      interrupted: the number of a signal that came earlier; of the class, as signals are of the process.
    """
    interrupted = None

    def __init__(self):
        self.requested = None
        self._deferred, self._early = False, False
        # Python runs handlers between its own instructions, hence not within a long step. A thread
        # learns of a signal at once, from a byte that the interpreter writes when it arrives.
        self._bytes, self._writing = socket.socketpair()
        self._writing.setblocking(False)
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for number in ending():
            signal.signal(number, self._handle)
        threading.Thread(target=self._watch, daemon=True).start()

    def defer(self, until: str = 'after this step') -> None:
        """From here on a first signal only sets `requested`, and says when the process ends."""
        self._deferred, self._until = True, until

    def _handle(self, number, frame):
        del frame
        if not self._deferred:
            Termination.interrupted = number
            raise KeyboardInterrupt

    def _watch(self):
        while True:
            number, = self._bytes.recv(1)
            if self.requested or (self._early and not self._deferred):
                os._exit(128 + number)
            if not self._deferred:  # the handler raises, once TensorFlow lets the interpreter go on
                self._early = True
                continue
            self.requested = signal.Signals(number).name
            # On a terminal the line begins with ^C.
            line = f'stopping   {self.requested}: {self._until}; once more ends at once'
            with contextlib.suppress(OSError):  # the terminal is gone
                print('\n' + line if sys.stdout.isatty() else line, flush=True)
