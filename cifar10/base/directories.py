"""The directories that a user names: their defaults, and whether this user alone can write to them."""
import contextlib
import functools
import os
import pathlib
import stat

from cifar10.base import files
from cifar10.base.console import say
from cifar10.base.errors import UsageError, describe_os_error

TRAIN_DIR = '/tmp/cifar10_train'
EVAL_DIR = '/tmp/cifar10_eval'
# The folders in a train_dir for what TensorBoard shows of its run, and for the evaluations. TensorBoard shows their
# names.
CURVES, EVALUATIONS = 'train', 'eval'
DATA_DIR = '/tmp/cifar10_data'


def refuse_of_others(path: str, given: str) -> None:
    """Raises a UsageError if other users may change a directory or file that is going to be written, or executed.

    Args:
      path: of the directory or file; need not exist.
      given: how the user gave it, such as '--train_dir=/tmp/train', for the message.
    """
    if why := _of_others(path):
        raise UsageError(f'{given}: {why}, so others may change what is there; use a directory of your own')


@functools.cache  # so that the warning appears once
def warn_of_others(path: str, given: str) -> None:
    """Warns if other users may change a directory that is only read. The arguments are as for `refuse_of_others`."""
    if why := _of_others(path):
        say('warning', f'{given}: {why}, so others may have changed what is read there')


def _of_others(path):
    """Returns why other users may change what is at a path, as a phrase, or None.

    Where everybody may write, as in /tmp, anybody can make a directory or a link before its user does. Elsewhere the
    owner of a directory is who it is meant to be, and a group that may write to it is meant to.
    """
    for route in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
        is_shared = False
        for place in [*reversed(pathlib.PurePath(route).parents), route]:
            if not os.path.lexists(place):
                break
            status = os.lstat(place)
            is_open = status.st_mode & stat.S_IWOTH and not stat.S_ISLNK(status.st_mode)
            if os.path.ismount(place):  # such as the volume of a container, whose files may all have another owner
                is_shared, is_open = False, is_open and status.st_mode & stat.S_ISVTX
            if is_shared and status.st_uid not in (0, os.geteuid()):
                return f'{place} belongs to user {status.st_uid}'
            if is_open and place == route:
                return f'{place} is writable by everybody (its owner can change that: chmod o-w {place!r})'
            is_shared = is_shared or is_open
    return None


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
    nearest = files.existing(path)
    missing = os.path.join(nearest, os.path.relpath(os.path.abspath(path), nearest).split(os.sep)[0])
    if os.path.islink(missing) and not os.path.exists(missing):
        raise UsageError(f'{flag}={path} cannot be used: {missing} is a link to {os.readlink(missing)}, which does not '
                         'exist; make that directory, or use another')
    if not os.path.isdir(nearest):
        raise UsageError(f'{flag}={path} cannot be used: {nearest} is not a directory; use another directory')
    # The modes that the directory needs; its parent need not be readable.
    modes = {'written': os.W_OK}
    if nearest == os.path.abspath(path):
        modes = {'read': os.R_OK, **modes}
    denied = ' or '.join(name for name, mode in modes.items() if not os.access(nearest, mode | os.X_OK))
    if denied:
        raise UsageError(f'{flag}={path} cannot be used: {nearest} cannot be {denied}; use another directory')


def check_plot(path: str) -> None:
    """Raises a UsageError if no plot can be written to a path. Selects a matplotlib backend without windows."""
    refuse_of_others(path, path)
    try:
        import matplotlib
    except ImportError:
        raise UsageError('plotting needs matplotlib; pip install matplotlib') from None
    matplotlib.use('Agg')
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UsageError(f'the folder of {path} does not exist; create it, or name another file')
    if os.path.isdir(path) or not path.lower().endswith('.png'):
        raise UsageError(f'{path} is not the name of a PNG file; give one that ends in .png')
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise UsageError(f'{path} cannot be written; name another file')
