"""Ends a process from any of its threads, because the main one may be blocked in TensorFlow."""
import contextlib
import os
import sys
import threading
from typing import NoReturn

from cifar10.base.errors import TemporaryError

_WRITE_SECS = 2.0  # in which the last line must be written


def end_process(message: str) -> NoReturn:
    """Ends this process with a message, which a TemporaryError might have, and with the status of one."""
    line = f'{os.path.basename(sys.argv[0])}: error: {message}\n'

    def write():
        for stream, text in ((sys.stdout, ''), (sys.stderr, line)):
            with contextlib.suppress(OSError):  # nobody reads it any more
                stream.write(text)
                stream.flush()
    try:
        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        writing.join(_WRITE_SECS)  # a reader that does not read must not keep the process
    finally:
        os._exit(TemporaryError.status)
