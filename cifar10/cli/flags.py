"""A config class as a command line: one flag a field, grouped help, errors in one line.

Used by programs only: the scripts, the examples, the benchmarks, local_cluster and show_inputs.
"""
import argparse
import dataclasses
import difflib
import math
from collections.abc import Callable, Collection, Sequence

from cifar10.config import Config, TrainConfig, forms
from cifar10.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are UsageErrors, of one line."""

    def __init__(self, description: str, **options):
        super().__init__(description=description, allow_abbrev=False, **options)

    def error(self, message):
        raise UsageError(f'{message}; see --help')


def at_least(least: int) -> Callable[[str], int]:
    """Returns an argparse type: a whole number that is not below `least`."""
    def kind(text):
        value = whole_number(text)
        if value < least:
            raise argparse.ArgumentTypeError(f'{value} is too small; the least is {least}')
        return value
    return kind


def positive(text: str) -> float:
    """An argparse type: a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f'{text!r} is not a number above 0')
    return value


def parse(config_class: type[Config], description: str, arguments: Sequence[str],
          shown: Collection[str] | None = None) -> Config:
    """Returns a config_class with the values that `arguments` (a list of str) give its fields.

    `--help` shows the flags of all groups, or of those in `shown`.

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
        _add_flag(groups[field.metadata['group']], field, shown is None or field.metadata['group'] in shown)
    values, unknown = parser.parse_known_args(arguments)
    if unknown:
        name = unknown[0].split('=')[0]
        close = difflib.get_close_matches(name, ['--' + field.name for field in fields], 1, cutoff=0.8)
        kind = 'flag' if name.startswith('-') else 'argument'
        hint = f' (did you mean {close[0]}?)' if close else ''
        raise UsageError(f'unknown {kind} {name}{hint}; see --help')
    return config_class(**{name: tuple(value) if isinstance(value, list) else value
                           for name, value in vars(values).items()})


def add_cluster(parser: Parser) -> None:
    """Gives a parser the flags of a cluster, as multi_gpu_train.py has them."""
    for field in dataclasses.fields(TrainConfig):
        if field.metadata['group'] == 'Cluster':
            _add_flag(parser, field)
            parser.set_defaults(**{field.name: field.default})


def _add_flag(group, field, shown=True):
    text = field.metadata['help'] if shown else argparse.SUPPRESS
    if shown and field.default is not None:
        default = str(field.default).lower() if field.type is bool else field.default
        text += f' (default: {default})'
    if field.type is tuple:
        group.add_argument('--' + field.name, action='extend', nargs='+', metavar='FILE', help=text)
    elif field.type is bool:
        group.add_argument('--' + field.name, type=_boolean, nargs='?', const=True, metavar='true|false', help=text)
        group.add_argument('--no' + field.name, dest=field.name, action='store_false', help=argparse.SUPPRESS)
    else:
        choices = field.metadata['choices']
        kind = {int: whole_number, float: _number}.get(field.type, str)
        group.add_argument('--' + field.name, type=kind, help=text, metavar='|'.join(forms(choices)) if choices else
                           {int: 'N', float: 'X'}.get(field.type, field.name.rsplit('_', 1)[-1].upper()))


def whole_number(text: str) -> int:
    """An argparse type: a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'{text!r} is not a whole number') from None


def _number(text):
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'{text!r} is not a number') from None


def _boolean(text):
    if text.lower() not in ('true', 'false', '1', '0'):
        raise argparse.ArgumentTypeError(f'{text!r} is neither true nor false')
    return text.lower() in ('true', '1')
