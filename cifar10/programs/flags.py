"""Command lines: a flag for each setting, help in groups, and errors in one line.

Programs use it: the scripts, the examples, the benchmarks, `local_cluster`, `show_inputs` and `replay`.
"""
import argparse
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from cifar10.base.console import say
from cifar10.base.errors import UsageError
from cifar10.programs import program
from cifar10.settings.definition import did_you_mean, fields, flag_of, forms
from cifar10.settings.training import ClusterSettings


class Parser(argparse.ArgumentParser):
    """An argument parser that raises a UsageError where argparse would print its usage and exit."""

    def __init__(self, description: str, **options):
        options.setdefault('prog', program.name())
        super().__init__(description=description, allow_abbrev=False, **options)
        self.add_argument('--version', action=_Version, nargs=0, default=argparse.SUPPRESS,
                          help='print the versions of the program, TensorFlow and Python, and exit')

    def parse_args(self, args=None, namespace=None):
        values, unknown = self.parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].split('=')[0]
            kind = 'flag' if name.startswith('-') else 'argument'
            self.error(f'unknown {kind} {name}{did_you_mean(name, self._option_string_actions)}')
        return values

    def error(self, message):
        raise UsageError(f'{message}; see --help')


class _Version(argparse.Action):
    """The flag `--version`."""

    def __call__(self, parser, *_):
        say(program.versions())
        parser.exit()


def at_least(minimum: int) -> Callable[[str], int]:
    """Returns an argparse type: a whole number that is not below a minimum."""
    def parse_number(text):
        value = whole_number(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f'{value} is too small; the minimum is {minimum}')
        return value
    return parse_number


def positive(text: str) -> float:
    """An argparse type: a finite number above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f'{text!r} is not a number above 0')
    return value


def parse(groups: Sequence[type], description: str, arguments: Sequence[str],
          shown: Collection[str] | None = None) -> dict[str, Any]:
    """Returns the values that a command line gives to settings, by the names of the settings.

    Flags are written `--name=value` or `--name value`; those of bool settings also `--name` and `--noname`.

    Args:
      groups: the groups of settings that have flags.
      description: the first line of `--help`.
      arguments: the command line without the program.
      shown: titles of the groups that `--help` shows; default: all.
    """
    parser = Parser(description, argument_default=argparse.SUPPRESS,
                    formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=100))
    for group in groups:
        parser_group = parser.add_argument_group(group.TITLE)
        for field in fields(group):
            _add_flag(parser_group, field, shown is None or group.TITLE in shown)
    values = vars(parser.parse_args(arguments))
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def add_cluster(parser: Parser) -> None:
    """Adds the flags of a cluster to a parser, as multi_gpu_train.py has them."""
    for field in fields(ClusterSettings):
        _add_flag(parser, field)
        parser.set_defaults(**{field.name: field.default})


def _add_flag(group, field, shown=True):
    """Adds the flag of a setting to a parser or to a group of its flags; `--help` leaves it out unless `shown`."""
    flag = flag_of(field)
    text = field.metadata['help'] if shown else argparse.SUPPRESS
    if shown and field.default is not None:
        default = str(field.default).lower() if field.type is bool else field.default
        text += f' (default: {default})'
    if field.type is tuple:
        group.add_argument(flag, dest=field.name, action='extend', nargs='+', metavar='FILE', help=text)
    elif field.type is bool:
        group.add_argument(
            flag, dest=field.name, type=_boolean, nargs='?', const=True, metavar='true|false', help=text)
        group.add_argument('--no' + field.name, dest=field.name, action='store_false', help=argparse.SUPPRESS)
    else:
        parse_value = {int: whole_number, float: _number}.get(field.type, str)
        group.add_argument(flag, dest=field.name, type=parse_value, metavar=_metavar(field), help=text)


def _metavar(field):
    """Returns what stands for the value of a flag in `--help`, such as N, a|b|c, or DIR for `--train_dir`."""
    if field.metadata['choices']:
        return '|'.join(forms(field.metadata['choices']))
    last_word = field.name.rstrip('_').rsplit('_', 1)[-1]
    return {int: 'N', float: 'X'}.get(field.type, last_word.upper())


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
