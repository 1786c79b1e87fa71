"""Locks files between processes, also of other machines, and opens files safely."""
import contextlib
import errno
import fcntl
import math
import os
import socket
import stat
import time
from collections.abc import Iterator
from typing import BinaryIO

from cifar10.base.activity import unlimited
from cifar10.base.console import say
from cifar10.base.errors import UsageError

_RETRY_SECS = 0.05  # between two attempts to take a lock


class Held(Exception):
    """Another process holds a lock; the message is the text of the lock file."""


class Lock:
    """A lock that this process holds, from `locked`.

    Attributes:
      missing: the reason if this file system has no locks, so other processes may hold it, too; None if it has locks.
    """

    def __init__(self, path: str, stream: BinaryIO, missing: str | None):
        self.missing = missing
        self._path = path
        self._stream = stream
        self._folder = os.stat(os.path.dirname(path) or '.')
        self._text = ''

    def is_lost(self) -> bool:
        """Returns whether its file or folder was replaced, so another process may hold the new lock.

        If the file was only removed, for example by a program that cleans /tmp, it is created and locked again.
        """
        if self.missing:
            return False
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return not os.path.samestat(os.fstat(self._stream.fileno()), os.stat(self._path))
        return not self._reacquire()

    def _reacquire(self):
        """Creates and locks the file again in the same folder; returns whether no other process was faster."""
        with contextlib.suppress(OSError):
            if os.path.samestat(self._folder, os.stat(os.path.dirname(self._path) or '.')):
                made = opened(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
                os.dup2(made, self._stream.fileno(), inheritable=False)
                os.close(made)
                fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.write(self._text)
                return True
        return False

    def write(self, text: str) -> None:
        """Replaces the text of the file, for processes that find it locked, unless the disk is full."""
        self._text = text
        with contextlib.suppress(OSError):
            self._stream.truncate(0)
            os.pwrite(self._stream.fileno(), text.encode(), 0)


@contextlib.contextmanager
def locked(path: str, seconds: float = math.inf, waiting: str | None = None) -> Iterator[Lock]:
    """Context that holds the lock of a file; creates the file and its folder. The file names the process.

    The file is opened for writing, because NFS shares such a lock between machines; a lock on a folder is local.

    Args:
      seconds: maximum time to wait for the lock.
      waiting: the lock's holder for a printed line, such as 'another evaluation'; None: no line.

    Raises:
      Held: another process still holds the lock; the message names the process if it is known.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    while True:
        with open(opened(path, os.O_RDWR | os.O_CREAT), 'r+b', buffering=0) as stream:
            lock = Lock(path, stream, _lock(stream, fcntl.LOCK_EX, seconds, waiting, path))
            if not lock.is_lost():  # its last holder may have removed the file
                lock.write(f'process {os.getpid()} on {socket.gethostname()}\n')
                try:
                    yield lock
                finally:
                    if not lock.missing:  # otherwise the text may be from another process
                        lock.write('')
                return


def refuse_held(path: str) -> None:
    """Raises Held if another process holds the lock of a file. Creates no file."""
    with contextlib.suppress(FileNotFoundError), open(opened(path, os.O_RDWR), 'r+b', buffering=0) as stream:
        _lock(stream, fcntl.LOCK_SH, 0)


def _lock(stream, kind, seconds, waiting=None, path=None):
    """Locks a file, exclusive or shared; returns None, or the reason if this file system has no locks."""
    limit = time.monotonic() + seconds
    with unlimited():  # the operating system releases the lock if its process ends
        while True:
            try:
                fcntl.flock(stream, kind | fcntl.LOCK_NB)
                return None
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):  # held; EACCES is from NFS
                    return error.strerror
            holder = os.pread(stream.fileno(), 200, 0).decode(errors='replace').strip()
            if time.monotonic() >= limit:
                raise Held(holder)
            if waiting:
                say('waiting', f"for {waiting}, which holds the lock {path}{f' ({holder})' if holder else ''}")
                waiting = None
            time.sleep(_RETRY_SECS)


def opened(path: str, flags: int = os.O_RDONLY) -> int:
    """Opens a regular file; returns the descriptor.

    Args:
      flags: as for `os.open`; with O_RDWR, even a pipe does not block.

    Raises:
      UsageError: the path is a pipe, a folder, a device, or a link, which may lead to another file of this user.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR):
            raise
    else:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    raise UsageError(f'{path} is a link or not a regular file; remove it')
