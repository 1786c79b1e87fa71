"""Which Python files a user has named for which runs: what a run names is executed only if its user did, once.

A run may have been downloaded, and its config.json may name any file, one that came with it too. The marks are in the
user's home, so that they hold on every machine that shares it.
"""
import contextlib
import hashlib
import os

from cifar10.base import files
from cifar10.base.console import say
from cifar10.base.directories import refuse_of_others
from cifar10.base.errors import UsageError
from cifar10.run.train_dir import TrainDir


def remember(run: str | None, name: str) -> None:
    """Notes that this user has named the file of 'FILE.py:FUNCTION' for a run, if there is a home to note it in."""
    path, mark = _place(run, name)
    if not _holds(path, mark):
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            with open(files.opened(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), 'a') as stream:
                stream.write(mark + '\n')


def check(flag: str, name: str, given: str | None, directory: TrainDir) -> None:
    """Raises a UsageError if the file that a run names may be somebody else's; otherwise says that it is executed.

    Args:
      flag: the flag of what the file has, such as 'network'.
      name: 'FILE.py:FUNCTION'.
      given: what the user has given by the flag, or None; a file that is given is trusted from now on.
      directory: the train_dir of the run.
    """
    file = name.rpartition(':')[0]
    names = f'the run in {directory.path} names the Python file {file}'
    run = directory.stored().run
    if given:
        remember(run, name)
        return
    if not _holds(*_place(run, name)):
        raise UsageError(f"{names}, which may be somebody else's code: you have not named it for this run so far; give "
                         f'--{flag}={name} once if you trust it')
    # The folder, too: a package, or compiled code, that somebody adds there is imported in place of the user's module.
    for path in (file, os.path.dirname(os.path.abspath(file))):
        refuse_of_others(path, names)
    say(f'code       {file} is executed, as the run names it')


def _place(run, name):
    """Returns (the file of the marks, the mark of a run and a file)."""
    home = os.environ.get('XDG_STATE_HOME') or os.path.expanduser('~/.local/state')
    text = f"{run} {os.path.abspath(name.rpartition(':')[0])}"
    return os.path.join(home, 'cifar10', 'code'), hashlib.sha256(os.fsencode(text)).hexdigest()


def _holds(path, mark):
    with contextlib.suppress(OSError), open(files.opened(path)) as stream:
        return mark in stream.read().split()
    return False
