"""Whether a user's own code is executed where only a run names it; where its network is now.

A config.json may name any file. As ssh does with its files, the program trusts a file if it and the folders
above it belong to the user or to root, and nobody else can write to them. Importing this module must not
import TensorFlow.
"""
import contextlib
import grp
import os
import pathlib
import pwd
import stat
from typing import TYPE_CHECKING

from cifar10.base.console import Line, say_all
from cifar10.base.errors import UsageError
from cifar10.base.registry import NETWORKS, OWN

if TYPE_CHECKING:
    from cifar10.run.record import RunRecord


def located(record: 'RunRecord', path: str, network: str | None) -> 'RunRecord':
    """Returns the record of a run with the present location of its network.

    Args:
      network: the new location that the user gives, or None. Without it, the file must be trusted, and a line reports
        that it is executed.

    Raises:
      UsageError: the user gives another network than the run's, or others may have written its file.
    """
    stored = record.settings.recipe.network
    if network is None:
        if NETWORKS.is_own(stored):
            say_all([check('network', stored, path)])
        return record
    if network != stored and not (NETWORKS.is_own(network) and NETWORKS.is_own(stored)):
        raise UsageError(f'--network={network}, but the run in {path} has network={stored}; leave --network out')
    return record._replace(settings=record.settings.replace(network=network))


def check(flag: str, name: str, path: str) -> str:
    """Checks that only this user can have written the code that a run names.

    Args:
      name: the flag's value, with 'FILE.py:FUNCTION'.

    Returns:
      A line that reports that the file is executed.

    Raises:
      UsageError: others may have written it.
    """
    file = OWN[flag].divided(name)[1].rpartition(':')[0]
    for route in map(pathlib.Path, (os.path.abspath(file), os.path.realpath(file))):  # with links, and without
        for place in (route, *route.parents):
            if os.path.lexists(place) and (why := _of_others(os.lstat(place), place not in (route, route.parent))):
                raise UsageError(f"the run in {path} names the Python file {file}, which may be somebody else's code: "
                                 f'{place} {why}; give --{flag}={name} if you trust it')
    return Line('code', f'{file} is executed, because the run names it')


def _of_others(status, is_above):
    """Returns how others can change what a file or folder with this status holds, as a phrase; None if they cannot.

    The rule is that of ssh (`safe_path` in its misc.c) with two exceptions: a group that has nobody else in it may
    write, as in Debian's ssh; and a folder that `is_above` the one of the file may be sticky, as /tmp is, where nobody
    else can replace a folder of the user's. In the folder of the file others could add modules.
    """
    if status.st_uid not in (0, os.geteuid()):
        return f'belongs to user {status.st_uid}'
    if stat.S_ISLNK(status.st_mode) or is_above and status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return 'is writable by everybody'
    if status.st_mode & stat.S_IWGRP and not _is_private(status):
        return 'is writable by its group'
    return None


def _is_private(status):
    """Returns whether the group of a file is the private one of its owner, which has the owner's name."""
    with contextlib.suppress(KeyError):
        group, owner = grp.getgrgid(status.st_gid), pwd.getpwuid(status.st_uid).pw_name
        return group.gr_name == owner and set(group.gr_mem) <= {owner}
    return False
