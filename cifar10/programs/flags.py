"""Command lines: a flag for each setting, help in groups, and errors in one line.

All programs use it: the scripts, the examples, the benchmarks, and `local_cluster`.
"""
import argparse
import contextlib
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cifar10.base.console import say_all
from cifar10.base.errors import UsageError, did_you_mean, shortened
from cifar10.programs import program
from cifar10.settings import evaluation
from cifar10.settings.definition import Group, fields, flag_of, forms, refuse_control_characters
from cifar10.settings.presets import PRESETS
from cifar10.settings.training import GROUPS, ClusterSettings, RecipeSettings

_WIDEST = 100  # columns of a help text, in any terminal
_TRUE, _FALSE = ('true', 'yes', 'on', '1'), ('false', 'no', 'off', '0')
_SCRIPTS = {'cifar10_eval.py': evaluation.GROUPS, 'multi_gpu_train.py': GROUPS}
# Placeholders for string values in help texts, by the last word of the setting's name.
_METAVARS = {
    'start': 'CHECKPOINT', 'checkpoint': 'PREFIX', 'freeze': 'REGEX',
    'csv': 'FILE', 'sizes': 'N:X,N', 'weights': 'NAME=X,...', 'hosts': 'HOST:PORT,...'}
# Flags of other programs -> our flags.
_SYNONYMS = {
    '--lr': '--learning_rate', '--steps': '--max_steps', '--logdir': '--train_dir', '--output': '--train_dir',
    '--model': '--network', '--gpus': '--num_gpus', '--weights': '--warm_start', '--save_every': '--save_steps',
    '--momentum': '--optimizer=momentum', '--resume': '--train_dir, because a run that is there is resumed'}


class Parser(argparse.ArgumentParser):
    """An argument parser that raises a UsageError instead of printing its usage and exiting.

    Dashes in the names of flags count as underscores.

    Args:
      doc: the program's docstring. `--help` shows its first line and, as examples, its indented lines, with the command
        replaced by the name of the running program. None, as with `python -OO`, shows neither.
      options: options of `argparse.ArgumentParser`.

    Attributes:
      short: the parser that prints `--help`; None: this parser, which also prints `--help=all`.
      elsewhere: flags of other programs, with the program, for errors about unknown flags.
    """
    short: 'Parser | None' = None
    elsewhere: Mapping[str, str] = {}

    def __init__(self, doc: str | None, **options):
        doc = doc or ''
        width = max(min(shutil.get_terminal_size().columns, _WIDEST) - 2, 20)
        prog = f'python {sys.argv[0]}' if sys.argv[0].endswith('.py') else program.name()
        examples = [re.sub(r'^cifar10-\S+', prog, line) for line in re.findall(r'^    (\S.*)', doc, re.M)]
        super().__init__(
            prog=prog, description='\n  '.join([textwrap.fill(doc.partition('\n')[0], width), *examples]),
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=28, width=width),
            add_help=False, allow_abbrev=False, **options)
        about = self.add_argument_group('Help')
        about.add_argument('-h', '--help', action=_Show, nargs='?', choices=['all'], metavar='all',
                           default=argparse.SUPPRESS, help='show this help, or the help of all flags')
        about.add_argument('--version', action=_Show, nargs=0, default=argparse.SUPPRESS,
                           help='show the installed versions')

    def parse_known_args(self, args=None, namespace=None):
        arguments = sys.argv[1:] if args is None else args
        end = arguments.index('--') if '--' in arguments else len(arguments)  # end of the flags; a command follows
        for argument in arguments[:end]:
            refuse_control_characters(argument, argument[-1:])  # the name of a picture may contain others
        return super().parse_known_args([*map(_with_underscores, arguments[:end]), *arguments[end:]], namespace)

    def parse_args(self, args=None, namespace=None):
        values, unknown = self.parse_known_args(args, namespace)
        if unknown:
            names = [shortened(each.split('=')[0]) for each in unknown if each.startswith('-')]
            if not names:
                self.error(f'unknown argument {shortened(unknown[0])}; flags are written --flag=value')
            self.error('; '.join(map(self._about, dict.fromkeys(names))))
        return values

    def _about(self, name):
        if name in self.elsewhere:
            return f'unknown flag {name}, which is a flag of {self.elsewhere[name]}'
        # Do not suggest a `--no` flag for a flag without `--no`, or the reverse.
        known = [flag for flag in self._option_string_actions if flag.startswith('--no') == name.startswith('--no')]
        synonym = _SYNONYMS.get(name, '')
        if re.split('[=,]', synonym)[0] in known:
            return f'unknown flag {name}; here it is {synonym}'
        return f'unknown flag {name}{did_you_mean(name, known)}'

    def error(self, message):
        raise UsageError(f"{message.removeprefix('argument ')}; see --help{'=all' if self.short else ''}")


class _Show(argparse.Action):
    """Implements `--help` and `--version`. The actions of argparse would ignore a closed output."""

    def __call__(self, parser, namespace, value, flag=None):
        of_all = parser.short is None or value
        text = program.versions() if flag == '--version' else (parser if of_all else parser.short).format_help()
        say_all(text.splitlines())
        parser.exit()


def _with_underscores(argument):
    """Replaces dashes in the flag of an argument with underscores: `--train_dir` for `--train-dir`."""
    name, equals, value = argument.partition('=')
    if name.startswith('--'):
        name = re.sub('^--no_', '--no', '--' + name[2:].replace('-', '_'))
    return name + equals + value


def at_least(minimum: int) -> Callable[[str], int]:
    """Returns an argparse type: a whole number greater than or equal to a minimum."""
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
        raise argparse.ArgumentTypeError(f'{shortened(repr(text))} is not a number above 0')
    return value


def parse(groups: Sequence[type[Group]], doc: str, arguments: Sequence[str],
          often: Sequence[str] = ()) -> dict[str, Any]:
    """Parses a command line; returns the given values by the names of the settings.

    Flags are written `--name=value` or `--name value`. Flags of bool settings may also be `--name` and `--noname`.

    Args:
      groups: the groups of settings with flags.
      doc: the program's docstring, as `Parser` takes it.
      often: names of the settings that `--help` shows; `--help=all` shows all. Default: all.
    """
    usage = '%(prog)s [--FLAG=VALUE ...]'
    parser = Parser(doc, argument_default=argparse.SUPPRESS, usage=usage)
    parser.elsewhere = {flag_of(field): script for script, others in _SCRIPTS.items() for field in fields(*others)}
    for group in groups:
        parser_group = parser.add_argument_group(group.TITLE)
        for field in fields(group):
            _add_flag(parser_group, field)
    if often:
        by_name = {field.name: field for field in fields(*groups)}
        parser.short = Parser(doc, usage=usage, epilog=(
            f'--help=all shows all {len(by_name)} flags. Documentation: docs/README.md in the repository.'))
        shown = parser.short.add_argument_group('The flags that are used most')
        for name in often:
            _add_flag(shown, by_name[name])
    values = vars(parser.parse_args(arguments))
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def add_cluster(parser: Parser) -> None:
    """Adds the flags of a cluster to a parser, as multi_gpu_train.py has them."""
    for field in fields(ClusterSettings):
        _add_flag(parser, field)
        parser.set_defaults(**{field.name: field.default})


def _add_flag(group, field):
    flag, text = flag_of(field), field.metadata['help']
    if '(default: ' not in text:
        text += f' (default: {_default(field)})'
    if field.type is tuple:
        group.add_argument(flag, dest=field.name, action='extend', nargs='+', metavar='FILE', help=text)
    elif field.type is bool:
        group.add_argument(
            flag, dest=field.name, type=_boolean, nargs='?', const=True, metavar='true|false', help=text)
        group.add_argument('--no' + field.name, dest=field.name, action='store_false', help=argparse.SUPPRESS)
    else:
        parse_value = {int: whole_number, float: _number}.get(field.type, str)
        group.add_argument(flag, dest=field.name, type=parse_value, metavar=_metavar(field), help=text)


def _default(field):
    if field.default is None:
        of_presets = field in fields(RecipeSettings) and any(preset.get(field.name) for preset in PRESETS.values())
        return "the preset's" if of_presets else 'none'
    presets = PRESETS if field in fields(*GROUPS) else {}  # evaluation settings may have the same names
    by_preset = {f'{name}: ': preset[field.name] for name, preset in presets.items() if field.name in preset}
    return '; '.join(name + (str(value).lower() if field.type is bool else str(value))
                     for name, value in {'': field.default, **by_preset}.items())


def _metavar(field):
    """Returns the placeholder for a flag's value in `--help`, such as N, a|b|c, or DIR for `--train_dir`."""
    if field.metadata['choices']:
        return '|'.join(forms(field.metadata['choices']))
    last_word = field.name.rsplit('_', 1)[-1]
    return {int: 'N', float: 'X'}.get(field.type) or _METAVARS.get(last_word, last_word.upper())


def whole_number(text: str) -> int:
    """An argparse type: a whole number, such as 5, 1_000 or 1e3."""
    with contextlib.suppress(ValueError):
        if (value := float(text)).is_integer():
            return int(value)
    raise argparse.ArgumentTypeError(f'{shortened(repr(text))} is not a whole number')


def _number(text):
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'{shortened(repr(text))} is not a number') from None


def _boolean(text):
    if text.lower() not in (*_TRUE, *_FALSE):
        raise argparse.ArgumentTypeError(f'{shortened(repr(text))} is not a boolean; use true or false')
    return text.lower() in _TRUE
