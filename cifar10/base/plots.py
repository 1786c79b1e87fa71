"""Checks that a plot can be drawn and written, before the work that it will show."""
import os

from cifar10.base.directories import refuse_of_others
from cifar10.base.errors import UsageError


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
        raise UsageError(f'the folder of {path} does not exist')
    if os.path.isdir(path) or not path.lower().endswith('.png'):
        raise UsageError(f'{path} is not the name of a PNG file; give one that ends in .png')
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise UsageError(f'{path} cannot be written; name another file')
