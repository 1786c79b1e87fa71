"""Defines a setting: its type, default, help and choices, and whether it may change when a run resumes."""
import dataclasses
import enum
import numbers
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

from cifar10.base.errors import UsageError, did_you_mean, shortened
from cifar10.base.registry import Registry

_TYPES = {int: 'a whole number', float: 'a number', bool: 'true or false', str: 'a string', tuple: 'a tuple'}
_LONGEST_PATH, _LONGEST_NAME = 4095, 255  # characters; Linux's limits
LARGEST_INT = 2 ** 31 - 1
# The float32 range without subnormal numbers, which may count as 0.
_SMALLEST_FLOAT, _LARGEST_FLOAT = 2.0 ** -126, (2 - 2.0 ** -23) * 2.0 ** 127


class Kind(enum.Enum):
    """The subject of a setting. A resumed run keeps its settings of the kinds OF_RUN, except given ones."""
    FIXED = enum.auto()  # the run; a change makes it a different run
    NOTED = enum.auto()  # the run; a line reports a change
    FREE = enum.auto()  # the run; no result depends on it
    MACHINE = enum.auto()
    START = enum.auto()  # one start, or one process of it


OF_RUN = Kind.FIXED, Kind.NOTED, Kind.FREE


@dataclasses.dataclass(frozen=True)
class Group:
    """A group of settings: a dataclass with fields from `setting`."""
    TITLE: ClassVar[str]


def setting(default: Any, help: str, *, minimum: int | None = None, choices: Collection[str] | None = None,
            kind: Kind = Kind.NOTED, only_with: tuple[str, str] | None = None,
            is_path: bool = False, checks: Iterable[Callable[[str, Any], Any]] = ()) -> Any:
    """Returns a dataclass field for one setting.

    Args:
      default: the value if none is given. If it is None, None is a valid value, and `help` explains it.
      help: the help text of the flag; starts with a noun.
      kind: the subject of the setting.
      only_with: (name of another setting, its required value). For any other value, this setting has no meaning
        and is None, despite its default.
      is_path: whether a string is a path for `path_of`. The name of a user's own file always is one.
      checks: functions (name, value) that raise a UsageError if the value is not valid.
    """
    return dataclasses.field(default=default, metadata=dict(
        help=help, minimum=minimum, choices=choices, kind=kind, only_with=only_with, is_path=is_path,
        checks=tuple(checks)))


def fields(*groups: type) -> list[dataclasses.Field]:
    """Returns the settings of the groups, in order."""
    return [field for group in groups for field in dataclasses.fields(group)]


def flag_of(field: dataclasses.Field) -> str:
    """Returns the flag of a setting, such as '--num_gpus'."""
    return f'--{field.name}'


def checked(groups: Collection[type], values: Mapping[str, Any]) -> dict[str, Any]:
    """Checks values of settings and returns them.

    Paths of the user's own files become absolute, because a run stores them. Omits an empty string if the default is
    None.

    Args:
      groups: the groups of the settings.
      values: the given values, by setting name.

    Raises:
      UsageError: a setting does not exist, or a value is not valid.
    """
    by_name = {field.name: field for field in fields(*groups)}
    result = {}
    for name, value in values.items():
        if name not in by_name:
            raise UsageError(f'unknown setting {name}{did_you_mean(name, by_name)}; --help=all lists '
                             'the settings of a program')
        is_path, value = isinstance(value, os.PathLike), _plain(value)
        if isinstance(value, str):
            if not value and by_name[name].default is None:  # from an unset shell variable
                continue
            value = _whole_path(value, is_path, by_name[name])
        elif isinstance(value, tuple) and by_name[name].type is tuple:
            value = tuple(map(os.path.expanduser, value))  # several paths, each checked on its own
        _check(by_name[name], value)
        result[name] = value
    return result


def path_of(flag: str, given: str) -> str:
    """Returns a user's path in the form that the whole program accepts; expands `~`, like a shell.

    Raises:
      UsageError: the home does not exist, the path is a URL such as gs://bucket, the working directory was removed, or
        the whole path, which lines recommend and a run stores, is not UTF-8.
    """
    path = os.path.expanduser(given)
    if path.startswith('~'):
        raise UsageError(f'{flag}={given}: there is no home directory {given.split(os.sep)[0]}; give the full path, or '
                         f'./{given} for a file of this name')
    if re.match(r'[A-Za-z][\w.+-]*://', path):
        raise UsageError(f'{flag}={given} is a URL, but files must be on this machine; mount it or copy its files, '
                         'and give a path')
    try:
        os.path.abspath(path).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f'{flag}={error.object} is not valid UTF-8, which TensorFlow requires; rename the directory, '
                         'or use another') from None
    except FileNotFoundError:
        raise UsageError(f'{flag}={given} is in the working directory, which was removed; change to another '
                         'directory') from None
    return path


def _plain(value):
    """Converts a value to a built-in type: a path to a string, a NumPy number to an int or a float."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__name__ in ('bool', 'bool_'):  # the latter is NumPy's
        return bool(value)
    if isinstance(value, numbers.Real) and not isinstance(value, (bool, int, float)):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return float(value) if isinstance(value, float) else value


def _whole_path(value, is_path, field):
    """Returns the path in a string, as an absolute path for a user's own file; returns other strings unchanged.

    An existing folder needs no slash, unless it has the name of a choice. A pathlib path has lost its slash.
    """
    if field.metadata['is_path']:
        return path_of(flag_of(field), value)
    is_folder = os.path.isdir(value) or value.startswith('~')
    if _is_own(value + '/', field) and (is_path or is_folder and value not in field.metadata['choices']):
        value += '/'
    if not _is_own(value, field):
        return value
    entry, own = field.metadata['choices'].divided(value)
    return f'{entry},' * bool(entry) + os.path.abspath(path_of(flag_of(field), own))


def _is_own(value, field):
    """Returns whether a string names a user's own object, such as a network in a file."""
    choices = field.metadata['choices']
    return isinstance(choices, Registry) and choices.is_own(value)


def _check(field, value):
    if value is None and field.default is None:
        return
    # Not isinstance: a bool is an int in Python. A whole number is a valid float.
    if type(value) is not field.type and not (field.type is float and type(value) is int):
        remedy = f'give {_TYPES[field.type]}'
        if callable(value) and _is_own('FILE.py:FUNCTION', field):
            remedy = f"give a function by its name, {flag_of(field)[2:]}='FILE.py:FUNCTION'"
        text = shortened(' '.join(repr(value).split()))  # an array has several lines
        raise UsageError(f'{flag_of(field)}={text} is not valid; {remedy}')
    given = f'{flag_of(field)}=' + (f'{value:g}' if type(value) is float else shortened(str(value)))
    if field.type is str:
        if not value:
            raise UsageError(f'{flag_of(field)} is empty; give it a value or leave it out')
        refuse_control_characters(f'{flag_of(field)}={value}')
        if field.metadata['is_path'] or _is_own(value, field):
            if len(value) > _LONGEST_PATH or max(map(len, value.split('/'))) > _LONGEST_NAME:
                raise UsageError(f'{given} is longer than the path of a file can be; give a shorter one')
    choices = field.metadata['choices']
    if choices and value not in choices:
        hint = did_you_mean(value, choices)
        if not hint and _is_own(value + '/', field):
            hint = ' (no folder here has this name; give your own by its path, which does not depend on --data_dir)'
        for form in ('none,{}:FUNCTION', 'none,{}', '{}:FUNCTION')[2 * (',' in value):]:  # shortest last
            if _is_own(meant := form.format(value), field) and meant == shortened(meant):
                hint = f' (did you mean {meant}?)'
        raise UsageError(f"{given} is unknown{hint}; choose from: {', '.join(forms(choices))}")
    minimum = field.metadata['minimum']
    if minimum is not None and value < minimum:
        raise UsageError(f'{given} is too small; the minimum is {minimum}')
    if field.type is float and value and not _SMALLEST_FLOAT <= value <= _LARGEST_FLOAT:  # NaN is not either
        raise UsageError(f'{given} is not valid; give 0, or a number from {_SMALLEST_FLOAT:.3g} to '
                         f'{_LARGEST_FLOAT:.3g}, the range of float32')
    if field.type is int and value > LARGEST_INT:
        raise UsageError(f'{given} is too large; the maximum is {LARGEST_INT}')
    for check in field.metadata['checks']:
        check(field.name, value)


def refuse_control_characters(given: str, part: str | None = None) -> None:
    """Raises a UsageError if a flag with its value has an invisible control character.

    Args:
      given: the flag, as a user gave it.
      part: the part of the flag to check; default: all.
    """
    found = [character for character in part or given if unicodedata.category(character) == 'Cc']
    if found:
        remedy = "; a script with Windows line endings is mended by: sed -i 's/\\r$//' SCRIPT" if '\r' in found else ''
        raise UsageError(f'{shortened(repr(given))} contains the control character {found[0]!r}; leave it out{remedy}')


def forms(choices: Collection[str]) -> Collection[str]:
    """Returns the valid values of a setting with choices, as a user would write them."""
    return choices.forms if isinstance(choices, Registry) else choices
