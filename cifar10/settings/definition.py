"""What a setting is: its type, default, help and choices, and whether it may change when a run is resumed.

A group of settings is a dataclass whose fields are made by `setting`. This file knows no group.
"""
import dataclasses
import enum
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from cifar10.errors import UsageError
from cifar10.registry import Registry


class Change(enum.Enum):
    """Whether a setting may change when a run is resumed."""
    NEVER = enum.auto()  # a run with another value is another run
    TOLD = enum.auto()  # it may, and a line says so
    FREE = enum.auto()


def setting(default: Any, help: str, *, least: int | None = None, choices: Collection[str] | None = None,
            change: Change = Change.FREE, only_with: tuple[str, str] | None = None,
            checks: Iterable[Callable[[str, Any], None]] = ()) -> Any:
    """Returns a field of a group of settings.

    Args:
      default: its value if it is not given. Where it is None, None is a value too: what is said in `help` then applies.
      help: for the command line; begins with the thing.
      least: the lowest value.
      choices: the values that it can have.
      change: whether it may change when a run is resumed.
      only_with: (name of another setting, its value) without which this one has no meaning, and is None.
      checks: functions (name, value) that raise a UsageError about a value.
    """
    return dataclasses.field(default=default, metadata=dict(
        help=help, least=least, choices=choices, change=change, only_with=only_with, checks=tuple(checks)))


def fields(*groups: type) -> list[dataclasses.Field]:
    """Returns the settings of some groups, in order."""
    return [field for group in groups for field in dataclasses.fields(group)]


def checked(groups: Collection[type], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values of settings, with the paths of the user's own files absolute: a run stores them.

    Args:
      groups: those that have all of the settings.
      values: by the names of settings; only those that are given.

    Raises:
      UsageError: a value is not one that its setting can have.
      TypeError: there is no setting of a name.
    """
    known = {field.name: field for field in fields(*groups)}
    result = {}
    for name, value in values.items():
        if name not in known:
            raise TypeError(f'there is no setting {name}')
        choices = known[name].metadata['choices']
        if isinstance(value, str) and isinstance(choices, Registry) and choices.is_own(value):
            value = os.path.abspath(value)
        _check(known[name], value)
        result[name] = value
    return result


def _check(field, value):
    if value is None and field.default is None:
        return
    if type(value) is not field.type and not (field.type is float and type(value) is int):
        kind = {int: 'a whole number', float: 'a number', bool: 'true or false', str: 'a string',
                tuple: 'a tuple'}[field.type]
        raise UsageError(f'--{field.name}={value!r} is not {kind}')
    choices = field.metadata['choices']
    if choices and value not in choices:
        hint = f' (did you mean {value}/?)' if field.name == 'dataset' and os.path.isdir(value) else ''
        raise UsageError(f"--{field.name}={value} is unknown{hint}; choose from: {', '.join(forms(choices))}")
    least = field.metadata['least']
    if least is not None and value < least:
        raise UsageError(f'--{field.name}={value} is too small; the least is {least}')
    if field.type is float and not (0 <= value < math.inf):
        raise UsageError(f'--{field.name}={value} is not a number from 0 upwards')
    if field.type is int and value >= 2 ** 31:
        raise UsageError(f'--{field.name}={value} is too large; the most is {2 ** 31 - 1}')
    if field.type is str and not value:
        raise UsageError(f'--{field.name} is empty; give it a value or leave it out')
    for special in field.metadata['checks']:
        special(field.name, value)


def forms(choices: Collection[str]) -> Collection[str]:
    """Returns what a setting with choices can have, as a user would write it."""
    return getattr(choices, 'forms', choices)


# Checks of single values.

def utf8(name: str, path: str) -> None:
    """Raises a UsageError if a path is not UTF-8, as TensorFlow needs it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(f'--{name}={path} is not a name in UTF-8, as TensorFlow needs it; rename the directory, or '
                         'use another') from None


def utf8_from_root(name: str, path: str) -> None:
    """As `utf8`, of the absolute path, which is what a run stores."""
    utf8(name, os.path.abspath(path))


def no_pattern(name: str, path: str) -> None:
    """Raises a UsageError if TensorFlow would take a path for a pattern of names."""
    if set(path) & set('*?[]\\'):
        raise UsageError(f'--{name}={path} holds one of * ? [ ] \\, which TensorFlow takes for a pattern of '
                         'names; use another directory')
