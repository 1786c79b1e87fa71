"""The directories that a user names: their defaults, and whether this user can read and write them."""
import contextlib
import os

from cifar10 import files
from cifar10.errors import UsageError, describe_os_error

TRAIN_DIR = '/tmp/cifar10_train'
EVAL_DIR = '/tmp/cifar10_eval'
DATA_DIR = '/tmp/cifar10_data'


def refuse_default_of_others(path: str, flag: str) -> None:
    """Raises a UsageError if a default directory belongs to another user: in /tmp, anybody can make it beforehand."""
    if path in (TRAIN_DIR, EVAL_DIR, DATA_DIR) and os.path.lexists(path) and (owner := files.foreign_owner(path)):
        raise UsageError(f'{flag}={path}, the default, {owner}; give {flag} a directory of your own')


def make_dir(path: str, flag: str) -> None:
    """Makes a directory and its parents, unless it exists; raises a UsageError if it cannot be read and written."""
    check_dir(path, flag)
    try:
        if not os.path.isdir(path):
            os.makedirs(path, exist_ok=True)
            with contextlib.suppress(PermissionError):  # the parent need not be readable
                files.sync(os.path.dirname(os.path.abspath(path)))
    except OSError as error:
        raise UsageError(f'{flag}={path} cannot be used: {describe_os_error(error)}; use another directory') from error


def check_dir(path: str, flag: str) -> None:
    """Raises the UsageErrors of `make_dir`, as far as they can be foreseen without making the directory."""
    refuse_default_of_others(path, flag)
    nearest = files.existing(path)
    if not os.path.isdir(nearest):
        raise UsageError(f'{flag}={path} cannot be used: {nearest} is not a directory; use another directory')
    # The modes that the directory needs; its parent need not be readable.
    modes = {'written': os.W_OK}
    if nearest == os.path.abspath(path):
        modes = {'read': os.R_OK, **modes}
    denied = ' or '.join(name for name, mode in modes.items() if not os.access(nearest, mode | os.X_OK))
    if denied:
        raise UsageError(f'{flag}={path} cannot be used: {nearest} cannot be {denied}; use another directory')
