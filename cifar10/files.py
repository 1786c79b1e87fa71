"""Files and folders that appear whole or not at all, whatever kills the process that writes them."""
import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator


def existing(path: str) -> str:
    """Returns a path, or the nearest folder above it that exists."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


@contextlib.contextmanager
def parents_of(path: str) -> Iterator[None]:
    """Context in which the folders above a path exist; an error takes those away again that it made."""
    parent = os.path.dirname(os.path.abspath(path))
    first = existing(parent)
    os.makedirs(parent, exist_ok=True)
    try:
        yield
    except BaseException:
        while parent != first:
            with contextlib.suppress(OSError):  # another process uses it
                os.rmdir(parent)
            parent = os.path.dirname(parent)
        raise


@contextlib.contextmanager
def new_folder(folder: str) -> Iterator[str]:
    """Context with the path of a temporary folder, which takes the name `folder` when all went well."""
    parent, name = os.path.split(os.path.abspath(folder))
    os.makedirs(parent, exist_ok=True)  # again: a process that failed beside this one may have removed it
    temporary = tempfile.mkdtemp(prefix=f'.{name}.', dir=parent)
    try:
        yield temporary
        os.chmod(temporary, 0o755)
        try:
            os.rename(temporary, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace(path: str, text: str) -> None:
    """Writes a text file, in place of the one that is there; surrogate-escaped bytes are written as they were."""
    with open(path + '.part', 'w', encoding='utf-8', errors='surrogateescape') as stream:
        stream.write(text)
    os.replace(path + '.part', path)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Context in which no other process is in such a context for this folder; waits for it."""
    with open(os.path.join(folder, 'lock'), 'a') as stream:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
