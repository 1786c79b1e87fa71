"""The directories of a user's flags: defaults, and checks."""
import contextlib
import os

from cifar10.base import files
from cifar10.base.errors import UsageError, describe_os_error

TRAIN_DIR = '/tmp/cifar10_train'
EVAL_DIR = '/tmp/cifar10_eval'
# The folders in a train_dir with the event files of the run and of its evaluations. TensorBoard shows their names.
CURVES, EVALUATIONS = 'train', 'eval'
DATA_DIR = '/tmp/cifar10_data'


def make_dir(path: str, flag: str) -> None:
    """Creates a directory and its parents if necessary; raises a UsageError if it is not readable and writable."""
    check_dir(path, flag)
    try:
        if not os.path.isdir(path):
            os.makedirs(path, exist_ok=True)
            with contextlib.suppress(PermissionError):  # the parent need not be readable
                files.sync(os.path.dirname(os.path.abspath(path)))
    except OSError as error:
        raise UsageError(f'{flag}={path} cannot be used: {describe_os_error(error)}; use another directory') from error


def check_dir(path: str, flag: str) -> None:
    """Raises the UsageErrors of `make_dir` that can be detected without creating the directory."""
    nearest = files.existing(path)
    missing = os.path.join(nearest, os.path.relpath(os.path.abspath(path), nearest).split(os.sep)[0])
    if os.path.islink(missing) and not os.path.exists(missing):
        raise UsageError(f'{flag}={path} cannot be used: {missing} is a link to {os.readlink(missing)}, which does not '
                         'exist; create that directory, or use another')
    if not os.path.isdir(nearest):
        raise UsageError(f'{flag}={path} cannot be used: {nearest} is not a directory; use another directory')
    # The required access; a parent need not be readable.
    modes = {'written': os.W_OK}
    if nearest == os.path.abspath(path):
        modes = {'read': os.R_OK, **modes}
    denied = ' or '.join(name for name, mode in modes.items() if not os.access(nearest, mode | os.X_OK))
    if denied:
        raise UsageError(f'{flag}={path} cannot be used: {nearest} cannot be {denied}; use another directory')


def check_plot(path: str) -> None:
    """Raises a UsageError if a path is not usable for a plot. Selects a matplotlib backend without windows."""
    try:
        import matplotlib
    except ImportError:
        raise UsageError('plotting needs matplotlib; pip install matplotlib') from None
    matplotlib.use('Agg')
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UsageError(f'the folder of {path} does not exist; create it, or name another file')
    if os.path.isdir(path) or not path.lower().endswith('.png'):
        raise UsageError(f'{path} is not the name of a PNG file; use a name that ends in .png')
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise UsageError(f'{path} cannot be written; name another file')
