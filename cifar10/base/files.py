"""Atomic creation of files and folders, which are complete even if the process is killed or the power fails.

A new file or folder is written under a private name, `.<name>.<eight random characters>`, and renamed once it is on the
disk. A killed process leaves its private file behind; `making` removes it, and `run.checkpoints.remove_abandoned` in a
train_dir.
"""
import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

from cifar10.base.locks import locked

_CHUNK = 1 << 20  # bytes to read at a time


def existing(path: str) -> str:
    """Returns a path if it exists, else its nearest existing parent."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def sync(*paths: str) -> None:
    """Waits until files and folders are on the disk: the bytes of a file, the names in a folder.

    TensorFlow's writers and a rename do not wait for the operating system, which may take half a minute. If the power
    fails before then, a file may be empty, full of zero bytes, or missing.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Some file systems do not support fsync, mostly for folders.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(descriptor)


def remove_empty(folder: str, above: str) -> None:
    """Removes a folder and its parents below the folder `above` if they are empty."""
    folder = os.path.abspath(folder)
    while folder != above:
        with contextlib.suppress(OSError):  # not empty: another process uses it
            os.rmdir(folder)
        folder = os.path.dirname(folder)


@contextlib.contextmanager
def new_folder(folder: str) -> Iterator[str]:
    """Context with the path of a private folder, which is renamed to `folder` at the end unless an error occurs."""
    parent = os.path.dirname(os.path.abspath(folder))
    temporary = private(folder, os.mkdir)
    try:
        yield temporary
        for path, _, names in os.walk(temporary):
            sync(*(os.path.join(path, name) for name in names), path)
        try:
            os.rename(temporary, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another process was faster
                raise
        sync(parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def new_file(path: str) -> Iterator[str]:
    """Context with the path of a private file, which replaces `path` at the end unless an error occurs."""
    temporary = private(path, lambda path: open(path, 'x').close())
    try:
        with named(path):
            yield temporary
        sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        os.remove(temporary)
        raise
    sync(os.path.dirname(temporary))


def sha256(*paths: str) -> str:
    """Returns the SHA-256 of the concatenated files, in lower-case hexadecimal digits."""
    digest = hashlib.sha256()
    for path in paths:
        with named(path), open(path, 'rb') as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def mark_used(*paths: str) -> None:
    """Sets the access time of files to now, because programs that clean /tmp remove unused files."""
    for path in paths:
        with contextlib.suppress(OSError):  # the file is gone, or another user owns it
            os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))


@contextlib.contextmanager
def named(path: str) -> Iterator[None]:
    """Context that adds a file name to an OSError without one, such as an error of `write`."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def replace(path: str, text: str) -> None:
    """Writes or replaces a text file; surrogate escapes become the original bytes."""
    with new_file(path) as temporary, open(temporary, 'w', encoding='utf-8', errors='surrogateescape') as stream:
        stream.write(text)


def private(path: str, make: Callable[[str], Any]) -> str:
    """Creates a file or folder under a private name of `path`; returns its path.

    Args:
      make: function that creates a file or folder, given its path, with the default mode (`tempfile` would exclude this
        user's group), or raises a FileExistsError.
    """
    folder, name = os.path.split(os.path.abspath(path))
    while True:
        made = os.path.join(folder, f'.{name}.{secrets.token_hex(4)}')
        with contextlib.suppress(FileExistsError):
            make(made)
            return made


def private_names(names: str) -> str:
    """Returns a regular expression for the private names of files whose final names match `names`."""
    return rf'\.(?:{names})\.[a-z0-9_]{{8}}'


@contextlib.contextmanager
def making(path: str) -> Iterator[None]:
    """Context in which only this process makes the file or folder `path`; waits while another process makes it.

    It removes private files of killed processes. On a file system without locks, it neither waits nor removes files.
    """
    lock_path = _lock_path(path)
    with locked(lock_path, waiting=f'another process that makes {path}') as lock:
        try:
            for leftover in [] if lock.missing else _private_paths(path):
                if os.path.isdir(leftover) and not os.path.islink(leftover):
                    shutil.rmtree(leftover)
                else:
                    os.remove(leftover)
            yield
        finally:
            with contextlib.suppress(OSError):
                os.remove(lock_path)


def remove_leftovers(path: str) -> None:
    """Removes private files that killed processes left while making a path, if this user may."""
    with contextlib.suppress(OSError):
        if os.path.lexists(_lock_path(path)) or _private_paths(path):
            with making(path):
                pass


def _lock_path(path):
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(folder, f'.{name}.lock')


def _private_paths(path):
    folder, name = os.path.split(os.path.abspath(path))
    pattern = private_names(re.escape(name))
    return [os.path.join(folder, entry) for entry in os.listdir(folder) if re.fullmatch(pattern, entry)]


def in_bytes(count: float) -> str:
    """Formats a number of bytes, such as '8.5 MB'."""
    unit, name = next(((unit, name) for unit, name in ((1e9, 'GB'), (1e6, 'MB')) if count >= unit), (1e3, 'kB'))
    return f'{count / unit:.1f} {name}'


def shortage(path: str, flag: str, size: int, what: str) -> str | None:
    """Returns an error message if the disk of a directory has no room for `size` bytes of `what`, else None."""
    if size <= shutil.disk_usage(existing(path)).free:
        return None
    return f'{flag}={path} has no room for {in_bytes(size)} ({what}); free some space, or use another {flag}'
