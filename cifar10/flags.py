"""A config class as a command line: one flag a field, grouped help, errors in one line.

Used by the programs alone, the examples and benchmarks among them; nothing under cifar10/ reads a flag.
"""
import argparse
import dataclasses
import difflib
import math
import os

from cifar10.config import TrainConfig
from cifar10.console import UsageError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are UsageErrors, of one line."""

    def __init__(self, description, **options):
        super().__init__(description=description, allow_abbrev=False, **options)

    def error(self, message):
        raise UsageError('%s; see --help' % message)


def at_least(least):
    """Returns an argparse type: a whole number that is not below `least`."""
    def kind(text):
        value = whole_number(text)
        if value < least:
            raise argparse.ArgumentTypeError('%d is too small; the least is %d' % (value, least))
        return value
    return kind


def positive(text):
    """An argparse type: a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError('%r is not a number above 0' % text)
    return value


def check_plot(path):
    """Raises a UsageError if no picture can be drawn to a path, before the work that it is to show."""
    try:
        import matplotlib
    except ImportError:
        raise UsageError("a picture needs matplotlib; pip install -e '.[plots]'") from None
    matplotlib.use('Agg')  # no window
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise UsageError('the folder of %s does not exist' % path)


def parse(config_class, description, arguments):
    """Returns a config_class with the values that `arguments` (a list of str) give its fields.

    Flags are written `--name=value` or `--name value`; a bool may also stand alone as `--name`, or
    as `--noname`.

    Raises:
      UsageError: an unknown flag, or a value that its field does not take.
    """
    parser = Parser(description, argument_default=argparse.SUPPRESS,
                    formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=100))
    fields = [field for field in dataclasses.fields(config_class) if field.metadata['group']]
    groups = {title: parser.add_argument_group(title)
              for title in dict.fromkeys(field.metadata['group'] for field in fields)}
    for field in fields:
        _add_flag(groups[field.metadata['group']], field)
    values, unknown = parser.parse_known_args(arguments)
    if unknown:
        name = unknown[0].split('=')[0]
        close = difflib.get_close_matches(name, ['--' + field.name for field in fields], 1, cutoff=0.8)
        raise UsageError('unknown %s %s%s; see --help' % (
            'flag' if name.startswith('-') else 'argument', name, ' (did you mean %s?)' % close[0] if close else ''))
    return config_class(**vars(values))


def add_cluster(parser):
    """Gives a parser the flags of a cluster, as multi_gpu_train.py has them."""
    for field in dataclasses.fields(TrainConfig):
        if field.metadata['group'] == 'Cluster':
            _add_flag(parser, field)
            parser.set_defaults(**{field.name: field.default})


def _add_flag(group, field):
    text = field.metadata['help']
    if field.default is not None:
        text += ' (default: %s)' % (str(field.default).lower() if field.type is bool else field.default)
    if field.type is bool:
        group.add_argument('--' + field.name, type=_boolean, nargs='?', const=True, metavar='true|false', help=text)
        group.add_argument('--no' + field.name, dest=field.name, action='store_false', help=argparse.SUPPRESS)
    else:
        choices = field.metadata['choices']
        kind = whole_number if field.type is int else str
        group.add_argument('--' + field.name, type=kind, help=text, metavar='|'.join(choices) if choices else
                           'N' if field.type is int else field.name.rsplit('_', 1)[-1].upper())


def whole_number(text):
    """An argparse type: a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError('%r is not a whole number' % text) from None


def _boolean(text):
    if text.lower() not in ('true', 'false', '1', '0'):
        raise argparse.ArgumentTypeError('%r is neither true nor false' % text)
    return text.lower() in ('true', '1')
