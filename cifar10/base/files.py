"""Files and folders that appear whole or not at all, even if the process is killed or the power fails.

A new file or folder is written under a private name, `.<name>.<eight random characters>`, and renamed once it
is on the disk. A process that is killed leaves its private file behind; `making` removes it, and in a train_dir
`run.takeover.remove_abandoned` does.
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

_CHUNK = 1 << 20  # bytes that are read at a time


def existing(path: str) -> str:
    """Returns a path if it exists, else the nearest folder above it that does."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def sync(*paths: str) -> None:
    """Waits until files and folders are on the disk: the bytes of a file, the names in a folder.

    TensorFlow's writers and a rename leave both to the operating system, which may take half a minute. A file
    that it has not written when the power fails may be empty, full of zero bytes, or missing.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Some file systems cannot do this, mostly for folders.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(descriptor)


def remove_empty(folder: str, above: str) -> None:
    """Removes a folder and those that contain it, below the folder `above`, as far as they are empty."""
    folder = os.path.abspath(folder)
    while folder != above:
        with contextlib.suppress(OSError):  # not empty: another process uses it
            os.rmdir(folder)
        folder = os.path.dirname(folder)


@contextlib.contextmanager
def new_folder(folder: str) -> Iterator[str]:
    """Context with the path of a private folder, which is renamed to `folder` at the end if all went well."""
    parent = os.path.dirname(os.path.abspath(folder))
    temporary = private(folder, os.mkdir)
    try:
        yield temporary
        for path, _, names in os.walk(temporary):
            sync(*(os.path.join(path, name) for name in names), path)
        try:
            os.rename(temporary, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # these mean that another process was faster
                raise
        sync(parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def new_file(path: str) -> Iterator[str]:
    """Context with the path of a private file, which replaces `path` at the end if all went well."""
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
    """Returns the SHA-256 of files, one after the other, as lower-case hexadecimal digits."""
    digest = hashlib.sha256()
    for path in paths:
        with named(path), open(path, 'rb') as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def mark_used(*paths: str) -> None:
    """Gives files the present time as that of their last use: programs that clean /tmp remove what is not used."""
    for path in paths:
        with contextlib.suppress(OSError):  # it is gone, or another user's
            os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))


@contextlib.contextmanager
def named(path: str) -> Iterator[None]:
    """Context in which an OSError without the name of a file, as those of writing are, gets one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def replace(path: str, text: str) -> None:
    """Writes or replaces a text file; surrogate escapes are written as the bytes that they stand for."""
    with new_file(path) as temporary, open(temporary, 'w', encoding='utf-8', errors='surrogateescape') as stream:
        stream.write(text)


def private(path: str, make: Callable[[str], Any]) -> str:
    """Makes a file or folder under a private name, for what will be called `path`; returns its path.

    Args:
      make: function that makes a file or folder of a given path, with the mode that new ones have here (`tempfile`
        would keep this user's group out), or raises a FileExistsError.
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

    The private files that killed processes left of it are removed. On a file system without locks, it neither
    waits nor removes anything.
    """
    lock_path = _lock_path(path)
    with locked(lock_path, waiting=f'another process that makes {path}') as lock:
        try:
            for left in [] if lock.missing else _private_paths(path):
                if os.path.isdir(left) and not os.path.islink(left):
                    shutil.rmtree(left)
                else:
                    os.remove(left)
            yield
        finally:
            with contextlib.suppress(OSError):
                os.remove(lock_path)


def remove_leftovers(path: str) -> None:
    """Removes what killed processes left while they made a file or folder that exists now, if this user may."""
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
    """Returns a number of bytes for people to read, such as '8.5 MB'."""
    unit, name = next((each for each in ((1e9, 'GB'), (1e6, 'MB')) if count >= each[0]), (1e3, 'kB'))
    return f'{count / unit:.1f} {name}'


def shortage(path: str, flag: str, size: int, what: str) -> str | None:
    """Returns a message, with a remedy, if the disk of a directory has no room for `size` bytes; `what` names them."""
    if size <= shutil.disk_usage(existing(path)).free:
        return None
    return f'{flag}={path} has no room for {in_bytes(size)} ({what}); free some space, or use another {flag}'
