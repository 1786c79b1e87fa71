"""The directories that a user names: their defaults, and whether this user can read and write them."""
import os

from cifar10 import files
from cifar10.errors import UsageError, describe_os_error

TRAIN_DIR = '/tmp/cifar10_train'
EVAL_DIR = '/tmp/cifar10_eval'
DATA_DIR = '/tmp/cifar10_data'


def refuse_default_of_others(path: str, flag: str) -> None:
    """Raises a UsageError if a default directory belongs to somebody else: in /tmp, anybody may make it beforehand."""
    if path in (TRAIN_DIR, EVAL_DIR, DATA_DIR) and os.path.lexists(path) and (whose := files.foreign_owner(path)):
        raise UsageError(f'{flag}={path}, the default, {whose}; give {flag} a directory of your own')


def make_dir(path: str, flag: str) -> None:
    """Makes a directory, parents included, unless it is there.

    Raises:
      UsageError: it cannot be made, read or written; the message names `flag`.
    """
    check_dir(path, flag)
    try:
        if not os.path.isdir(path):
            os.makedirs(path, exist_ok=True)
            files.sync(os.path.dirname(os.path.abspath(path)))
    except OSError as error:
        raise UsageError(f'{flag}={path} cannot be used: {describe_os_error(error)}; use another directory') from error


def check_dir(path: str, flag: str) -> None:
    """Raises a UsageError as `make_dir` does, as far as it can be known without making the directory."""
    refuse_default_of_others(path, flag)
    found = files.existing(path)
    if not os.path.isdir(found):
        raise UsageError(f'{flag}={path} cannot be used: {found} is not a directory; use another directory')
    needed = dict(read=os.R_OK | os.X_OK, written=os.W_OK) if found == os.path.abspath(path) else dict(written=os.W_OK)
    missing = ' or '.join(what for what, mode in needed.items() if not os.access(found, mode | os.X_OK))
    if missing:
        raise UsageError(f'{flag}={path} cannot be used: {found} cannot be {missing}; use another directory')
