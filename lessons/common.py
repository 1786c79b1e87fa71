"""Flags, devices and sessions of all lessons."""
import argparse

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base import directories
from cifar10.base.errors import UsageError
from cifar10.programs import flags


def parser(description: str, plot: str = '') -> flags.Parser:
    """Returns a parser with the flag `--device`, and `--plot` if the lesson draws something.

    Args:
      description: the lesson's docstring; `--help` shows its first line.
      plot: the content of the plot, such as 'loss against seconds'.
    """
    made = flags.Parser(description.splitlines()[0])
    made.add_argument('--device', choices=('auto', 'cpu', 'gpu'), default='auto',
                      help='where to compute; auto: on GPUs if there are enough, else on CPU devices '
                           '(default: %(default)s)')
    if plot:
        made.add_argument('--plot', metavar='FILE', help=f'PNG file to draw {plot} into; needs matplotlib')
    return made


def parse(made: flags.Parser) -> argparse.Namespace:
    """Returns the values of the flags, after checking that the plot can be written."""
    arguments = made.parse_args()
    if getattr(arguments, 'plot', None):
        directories.check_plot(arguments.plot)
    return arguments


def choose_devices(kind: str, count: int) -> list[str]:
    """Returns the names of `count` devices, such as ['/cpu:0', '/cpu:1'].

    Args:
      kind: the value of `--device`.
      count: how many; TensorFlow can divide one processor into any number of CPU devices.

    Raises:
      UsageError: `--device=gpu`, but there are fewer GPUs than `count`.
    """
    gpus = len(tf.config.list_physical_devices('GPU'))
    if kind == 'gpu' and gpus < count:
        raise UsageError(f'--device=gpu: this takes {count} GPUs, but TensorFlow finds {gpus}; use --device=cpu')
    chosen = 'gpu' if kind != 'cpu' and gpus >= count else 'cpu'
    return [f'/{chosen}:{k}' for k in range(count)]


def session(devices: list[str], threads: int = 0) -> tf.Session:
    """Returns a session of the default graph that has the devices, and as many CPU devices.

    Args:
      devices: their names, as `choose_devices` returns them.
      threads: how many operations can run at the same time, including sleeping ones; 0: as many as the
        machine has cores.
    """
    config = tf.ConfigProto(device_count={'CPU': len(devices), 'GPU': 0})
    if devices[0].startswith('/gpu'):
        config.device_count['GPU'] = len(devices)
        config.gpu_options.allow_growth = True
    if threads:
        config.use_per_session_threads = True
        config.inter_op_parallelism_threads = threads
    config.allow_soft_placement = True  # an operation without a GPU kernel runs on the CPU
    return tf.Session(config=config)


def save(figure, path: str) -> None:
    """Writes a figure of matplotlib as a PNG file, and prints its path."""
    figure.savefig(path, dpi=200, format='png')
    print(f'\nwritten {path}')


def numbers(values, digits: int = 2, width: int = 7) -> str:
    """Returns an array's numbers in one line, each right-aligned in `width` characters."""
    # Adding 0 turns -0.0 into 0.0.
    return ''.join(f'{value:{width}.{digits}f}' for value in np.round(np.ravel(values), digits) + 0.0)
