"""Decides whether to execute user code that only a run's config names; locates its network.

A config.json may name any file. Importing this module must not import TensorFlow.
"""
import contextlib
import grp
import os
import pwd
import stat
from typing import TYPE_CHECKING

from cifar10.base.console import Line, say_all
from cifar10.base.errors import UsageError
from cifar10.base.registry import NETWORKS, OWN

if TYPE_CHECKING:
    from cifar10.run.record import RunRecord


def located(record: 'RunRecord', path: str, network: str | None, dataset: str | None) -> 'RunRecord':
    """Returns the record of a run with the current location of its network.

    Args:
      network: the new location from the user, or None. For None, the file must be trusted, and a line reports its
        execution.
      dataset: the data set from the user, or None, with the same meaning.

    Raises:
      UsageError: the given network is not the run's, or other users may have written its file.
    """
    stored, data = record.settings.recipe.network, record.settings.data.dataset
    named = [('network', stored)] * (network is None) + [('dataset', data)] * (dataset is None)
    say_all(dict.fromkeys(check(flag, name, path) for flag, name in named if OWN[flag].is_code(name)))
    if network is None:
        return record
    if network != stored and not (NETWORKS.is_own(network) and NETWORKS.is_own(stored)):
        raise UsageError(f'--network={network}, but the run in {path} has network={stored}; leave --network out')
    return record._replace(settings=record.settings.replace(network=network))


def check(flag: str, name: str, path: str) -> Line:
    """Checks that only this user or root can have written a run's code and the modules in its folder.

    Args:
      name: the flag's value, with 'FILE.py:FUNCTION'.

    Returns:
      A line that reports the execution of the file.

    Raises:
      UsageError: the file or its folder belongs to another user, or other users may write to it.
    """
    file = os.path.abspath(OWN[flag].divided(name)[1].rpartition(':')[0])
    for route in (file, os.path.realpath(file)):  # a link and its target
        for place in (route, os.path.realpath(os.path.dirname(route))):
            if os.path.lexists(place) and (why := _of_others(os.lstat(place))):
                raise UsageError(f"the run in {path} names the Python file {file}, which may be somebody else's code: "
                                 f'{place} {why}; give --{flag}={name} if you trust it')
    return Line('code', f'{file} is executed, because the run names it')


def _of_others(status):
    """Returns a phrase for how other users can change a file or folder with this status; None if they cannot."""
    if status.st_uid not in (0, os.geteuid()):
        return f'belongs to user {status.st_uid}'
    if stat.S_ISLNK(status.st_mode):
        return None
    if status.st_mode & stat.S_IWOTH:
        return 'is writable by everybody'
    return 'is writable by its group' if status.st_mode & stat.S_IWGRP and not _is_private(status) else None


def _is_private(status):
    """Returns whether the file's group has only its owner: many systems give each user a private group."""
    with contextlib.suppress(KeyError):
        group, owner = grp.getgrgid(status.st_gid), pwd.getpwuid(status.st_uid).pw_name
        return group.gr_name == owner and set(group.gr_mem) <= {owner}
    return False
