"""Which Python files a user has named for which runs. A file that only the run names is not executed.

A run may have been downloaded, and its config.json may name any file, one that came with it too. The marks are in the
user's home, so that they hold on every machine that shares it.
"""
import contextlib
import hashlib
import os
from typing import TYPE_CHECKING

from cifar10.base import files
from cifar10.base.console import say
from cifar10.base.directories import refuse_of_others
from cifar10.base.errors import UsageError
from cifar10.base.registry import OWN

if TYPE_CHECKING:
    from cifar10.run.record import RunRecord


def remember(run: str | None, name: str) -> None:
    """Notes that this user has named the file of 'FILE.py:FUNCTION' for a run, if there is a home to note it in."""
    path, mark = _place(run, name)
    if not _holds(path, mark):
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            with open(files.opened(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), 'a') as stream:
                stream.write(mark + '\n')


def located(record: 'RunRecord', path: str, **given: str | None) -> 'RunRecord':
    """Returns the record of a run with the present locations of the user's own files.

    Args:
      record: of the run.
      path: the train_dir of the run.
      given: what the user gives by the flags `dataset`, `network` and `optimizer`: new locations, or None. Code that is
        given is trusted from now on; other code must have been, and a line says that it is executed.

    Raises:
      UsageError: the user gives something else than the run has, or its code may be somebody else's.
    """
    stored = record.settings.flat()
    for flag, name in given.items():
        registry = OWN[flag]
        if name not in (None, stored[flag]) and not (registry.is_own(name) and registry.is_own(stored[flag])):
            raise UsageError(f'--{flag}={name}, but the run in {path} has {flag}={stored[flag]}; leave --{flag} out')
        present = name or stored[flag]
        if flag != 'dataset' and registry.is_own(present):
            if name:
                remember(record.run, name)
            else:
                say(check(flag, present, record.run, path))
    return record._replace(settings=record.settings.replace(
        **{flag: name for flag, name in given.items() if name is not None}))


def check(flag: str, name: str, run: str | None, path: str) -> str:
    """Checks that the code which only a run names is this user's.

    Args:
      flag: the flag that would name it.
      name: 'FILE.py:FUNCTION'.
      run: the id of the run.
      path: its train_dir.

    Returns:
      A line that says that the file is executed.

    Raises:
      UsageError: it may be somebody else's.
    """
    file = name.rpartition(':')[0]
    names = f'the run in {path} names the Python file {file}'
    if not _holds(*_place(run, name)):
        raise UsageError(f"{names}, which may be somebody else's code: you have not named it for this run so far; give "
                         f'--{flag}={name} once if you trust it')
    # The folder, too: a package, or compiled code, that somebody adds there is imported in place of the user's module.
    for each in (file, os.path.dirname(os.path.abspath(file))):
        refuse_of_others(each, names)
    return f'code       {file} is executed, as the run names it'


def _place(run, name):
    """Returns (the file of the marks, the mark of a run and a file)."""
    home = os.environ.get('XDG_STATE_HOME') or os.path.expanduser('~/.local/state')
    text = f"{run} {os.path.abspath(name.rpartition(':')[0])}"
    return os.path.join(home, 'cifar10', 'code'), hashlib.sha256(os.fsencode(text)).hexdigest()


def _holds(path, mark):
    with contextlib.suppress(OSError), open(files.opened(path)) as stream:
        return mark in stream.read().split()
    return False
