"""Files and folders that appear whole or not at all, even if the process is killed or the power fails.

A new file or folder is written under a private name, `.<name>.<eight random characters>`, and renamed once it
is on the disk. A process that is killed leaves its private file behind; the next one that holds the same lock
removes it.
"""
import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator

from cifar10.console import say

RANDOM = '[a-z0-9_]{8}'  # a regular expression for what `tempfile` appends to a prefix


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


def sync_tree(folder: str) -> None:
    """Waits until a folder is on the disk with everything in it."""
    for path, _, names in os.walk(folder):
        sync(*(os.path.join(path, name) for name in names), path)


@contextlib.contextmanager
def parents_of(path: str) -> Iterator[None]:
    """Context in which the folders above a path exist; after an error, the ones that it made are removed again."""
    parent = os.path.dirname(os.path.abspath(path))
    first = existing(parent)
    os.makedirs(parent, exist_ok=True)
    try:
        yield
    except BaseException:
        remove_empty(parent, first)
        raise


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
    parent, name = os.path.split(os.path.abspath(folder))
    os.makedirs(parent, exist_ok=True)  # another process that failed may have removed it meanwhile
    temporary = tempfile.mkdtemp(prefix=f'.{name}.', dir=parent)
    try:
        yield temporary
        os.chmod(temporary, 0o755)
        sync_tree(temporary)
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
    folder, name = os.path.split(os.path.abspath(path))
    descriptor, temporary = tempfile.mkstemp(prefix=f'.{name}.', dir=folder)
    try:
        os.fchmod(descriptor, 0o666 & ~_umask())  # `mkstemp` makes it readable for this user only
        os.close(descriptor)
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        os.remove(temporary)
        raise
    sync(folder)


def replace(path: str, text: str) -> None:
    """Writes or replaces a text file; surrogate escapes are written as the bytes that they stand for."""
    with new_file(path) as temporary, open(temporary, 'w', encoding='utf-8', errors='surrogateescape') as stream:
        stream.write(text)


def _umask():
    """Returns the umask of this process. `os.umask` can read it only by changing it, for all threads."""
    with open('/proc/self/status') as stream:
        return next(int(line.split()[1], 8) for line in stream if line.startswith('Umask:'))


def is_private(name: str, final_name: str) -> bool:
    """Returns whether `name` is a private name of what will be called `final_name`."""
    final = re.escape(final_name)
    # The second form is that of version 1.0.
    return bool(re.fullmatch(rf'\.{final}\.{RANDOM}|{final}\.\d+\.part', name))


def remove(path: str) -> None:
    """Removes a file, or a folder with everything in it."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.remove(path)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Context that holds the lock of a folder; waits while another process holds it."""
    with open(os.path.join(folder, 'lock'), 'a') as stream:
        with contextlib.suppress(OSError):  # on a file system without locks
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def making(path: str) -> Iterator[None]:
    """Context in which only this process makes the file or folder `path`; waits while another process makes it.

    The private files that killed processes left of it are removed. On a file system without locks, it neither
    waits nor removes anything.
    """
    folder, name = os.path.split(os.path.abspath(path))
    lock = os.path.join(folder, f'.{name}.lock')
    descriptor = _acquire(lock, path)
    try:
        if descriptor is not None:
            for entry in os.listdir(folder):
                if is_private(entry, name):
                    remove(os.path.join(folder, entry))
        yield
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.remove(lock)
            os.close(descriptor)


def remove_leftovers(path: str) -> None:
    """Removes what killed processes left while they made a file or folder that exists now, if this user may."""
    folder, name = os.path.split(os.path.abspath(path))
    with contextlib.suppress(OSError):
        if any(entry == f'.{name}.lock' or is_private(entry, name) for entry in os.listdir(folder)):
            with making(path):
                pass


def _acquire(lock, path):
    """Waits for a lock; returns the descriptor of its file, or None on a file system without locks."""
    announced = False
    while True:
        os.makedirs(os.path.dirname(lock), exist_ok=True)  # a process that failed may have removed it
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):  # held by another process; the second by NFS
                os.remove(lock)
                os.close(descriptor)
                return None
            if not announced:
                say(f'waiting    for another process that makes {path}')
                announced = True
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Its last holder may have removed the file. Then the lock is worthless: others lock the file that has
        # the name.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                return descriptor
        os.close(descriptor)


def foreign_owner(path: str) -> str | None:
    """Returns the owner of a file or folder as a phrase, or None if it belongs to this user or root."""
    for get_status in (os.lstat, os.stat):  # of a link, and of its target
        with contextlib.suppress(FileNotFoundError):
            if (owner := get_status(path).st_uid) not in (0, os.geteuid()):
                return f'belongs to user {owner}'
    return None


def open_to_others(path: str) -> str | None:
    """Returns who can write to a path, as a phrase, or None if only this user, this user's group and root can."""
    status = os.stat(path)
    if status.st_mode & stat.S_IWOTH:
        return 'is writable for everybody'
    if status.st_mode & stat.S_IWGRP and status.st_gid != os.getegid():
        return f'is writable for group {status.st_gid}'
    return foreign_owner(path)
