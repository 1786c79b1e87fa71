"""Checks, before the work that a plot is to show, that it can be drawn and written."""
import os

from cifar10.errors import UsageError


def check_plot(path: str) -> None:
    """Raises a UsageError if no plot can be written to a path, before the work that it is to show."""
    try:
        import matplotlib
    except ImportError:
        raise UsageError("plotting needs matplotlib; pip install -e '.[plots]'") from None
    matplotlib.use('Agg')  # no window
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UsageError(f'the folder of {path} does not exist')
    if os.path.isdir(path) or not path.lower().endswith('.png'):
        raise UsageError(f'{path} is not the name of a PNG file; give one that ends in .png')
    if not (os.access(path, os.W_OK) if os.path.exists(path) else os.access(folder, os.W_OK | os.X_OK)):
        raise UsageError(f'{path} cannot be written; name another file')
