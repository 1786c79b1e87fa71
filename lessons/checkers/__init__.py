"""Shared functions of the checkers: they call a reader's function and compare its result.

For each exercise F, a module in this folder has a function

    check_F(function, random) -> str | None

It returns None if the reader's function is right. Otherwise it returns the first counterexample as a phrase, such as
'for shares 3 and 1 with gradients 2 and 6 it returns 4; 3 is right', or raises a Fault with this phrase. It tries the
cases of the page and at least twenty more. It draws the latter from `random`, a NumPy generator, in sizes that the page
does not show. It computes the right results with NumPy, without lessons/solutions.

HINTS of the module maps each F to a list of hints. A hint is a text or a pair (pattern, text). A pair is for one
mistake: its text is shown if the regular expression `pattern` matches the counterexample. A plain text is a general
hint; each wrong answer shows the next one.

A checker runs in its own process (child.py), with limits of time and memory. Checkers of exercises that build a graph
use graph.py, which imports TensorFlow; this module must not import it.
"""
import builtins
import contextlib
import copy
import dataclasses
import decimal
import fractions
import inspect
import math
import operator
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

import numpy as np

# Hints of every exercise, tried before its own HINTS.
COMMON_HINTS = [
    ('changes its argument', 'make new lists and arrays: for example, `x = x - y` instead of `x -= y`.'),
    (r"module 'tensorflow\b.*' has no attribute", 'the lessons use `import tensorflow.compat.v1 as tf`.')]

_MODULES = (builtins, math, np, np.linalg, np.random)  # a reader may replace their functions
_replaced = [{} for _ in _MODULES]  # for each module: {name: reader's function}


class Fault(Exception):
    """The reader's function raised an exception or broke a rule; the message is a phrase that describes the fault."""


# Faults of code that does not run, and of results of a wrong type. They do not show whether its idea is right.
DOES_NOT_RUN = re.compile(r'it raises (NameError|UnboundLocalError|AttributeError)\b|it does not end within')
WRONG_TYPE = re.compile(r'it returns None; .* is right|(which|that) is not |; an? (pair|list|tuple|operation) ')


class OutOfTime(BaseException):
    """The reader's code takes too long. It is a BaseException, so that the reader's `except Exception` lets it pass."""


def call(function: Callable, *arguments: Any) -> Any:
    """Calls the reader's function twice, each time with copies of the arguments, and returns its result.

    Returns:
      The result, converted by `plain`.

    Raises:
      Fault: the function raised an exception, changed an argument, or returned a different result in the second call.
    """
    values = []
    for _ in range(2):
        given = copy.deepcopy(arguments)
        returned = call_once(function, *given)
        values.append(call_once(plain, returned, of=function))  # a generator runs the reader's code here
        for number, (before, after) in enumerate(zip(arguments, given)):
            if not same(before, after):
                raise Fault(f'it changes its argument {_name(function, number)} from {shown(before)} to '
                            f'{shown(after)}; the caller still needs the old value')
    if not same(*values, tolerance=1e-6):
        raise Fault(f'it returns {shown(values[1])} in a second call, but {shown(values[0])} in the first')
    return values[0]


def call_once(function: Callable, *arguments: Any, of: Callable | None = None) -> Any:
    """Calls the reader's function once, without copying the arguments, and returns its result unchanged.

    Args:
      of: the reader's function, if `function` is not this function but runs its code.

    Raises:
      Fault: the reader's code raised an exception or took too long.
    """
    try:
        # NumPy warns about a division by zero, but only the result matters.
        with warnings.catch_warnings(), readers_functions():
            warnings.simplefilter('ignore')
            return function(*arguments)
    except OutOfTime as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Fault(str(error)) from error
    except BaseException as error:  # SystemExit, too
        raise Fault(f'it raises {type(error).__name__}{_line(error, of or function)}{_message(error)}') from error


def compare(function: Callable, arguments: tuple, right: Any, case: str, size: float | None = None) -> str | None:
    """Calls the reader's function, as `call` does, and compares its result with the right one.

    Args:
      arguments: the function's arguments.
      right: a number or an array.
      case: the arguments in words and numbers, such as 'shares 3 and 1'.
      size: as for `mismatch`.

    Returns:
      None if the result is right up to float rounding, else a phrase.
    """
    try:
        returned = call(function, *arguments)
    except Fault as fault:
        return f'for {case} {fault}'
    difference = mismatch(returned, right, size)
    return difference and f'for {case} {difference}'


def mismatch(returned: Any, right: Any, size: float | None = None) -> str | None:
    """Returns None if `returned` equals `right`, an array or a number, up to float rounding, else a phrase.

    Args:
      size: the magnitude of the numbers in the computation; rounding errors of up to 1e-5 times `size` are accepted.
        The default is the largest magnitude in `right`.
    """
    right = np.asarray(right)
    array = numeric(returned)
    if array is None:
        kind = 'an array of numbers' if right.ndim else 'a number'
        return f'it returns {shown(returned)}, which is not {kind}'
    if array.shape != right.shape:
        return f'it returns {shown(array)} of shape {array.shape}; shape {right.shape} is right'
    finite = np.abs(right[np.isfinite(right)])
    if size is None:
        size = finite.max() if finite.size else 0
    if not np.allclose(array, right, rtol=1e-5, atol=1e-5 * size, equal_nan=True):
        return f'it returns {shown(array)}; {shown(right)} is right'
    return None


def numeric(value: Any) -> np.ndarray | None:
    """Converts a number, an array or lists of numbers to an array; returns None for any other value."""
    try:
        array = np.asarray(plain(value))
        if array.dtype.kind == 'V':  # one of TensorFlow's types, such as bfloat16
            array = array.astype(float)
        if array.dtype == object and all(isinstance(each, int) for each in array.flat):  # too large for int64
            array = array.astype(float)
    except (TypeError, ValueError, OverflowError, NotImplementedError):  # lists of different lengths; text
        return None
    return array if array.dtype.kind in 'biuf' else None


def whole(value: Any) -> int | None:
    """Converts a whole number that can index a list to an int; returns None for any other value, such as 3.0."""
    try:
        return operator.index(plain(value))
    except TypeError:
        return None


def plain(value: Any) -> Any:
    """Converts a value to numbers, arrays, tuples, lists and dicts, if possible.

    Tensors become arrays, tf.IndexedSlices become pairs (values, indices), fractions become floats, and dataclasses
    become tuples. Generators, ranges and other iterables become lists. Any other value is returned unchanged.
    """
    if isinstance(value, (fractions.Fraction, decimal.Decimal)):
        return float(value)
    if isinstance(value, np.ndarray):
        return plain(value.tolist()) if value.dtype == object else value
    if value is None or isinstance(value, (bool, int, float, str, bytes, Set, type, np.generic)):
        return value
    tensorflow = sys.modules.get('tensorflow')
    if tensorflow and isinstance(value, tensorflow.IndexedSlices):
        return plain(value.values), plain(value.indices)
    if tensorflow and tensorflow.is_tensor(value):
        return _evaluated(value, tensorflow.compat.v1)
    if dataclasses.is_dataclass(value):
        return tuple(plain(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, Mapping):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if hasattr(value, '__array__'):
        return np.asarray(value)
    if isinstance(value, Iterable):
        return [plain(each) for each in value]
    return value


def same(first: Any, second: Any, tolerance: float = 0) -> bool:
    """Returns whether two values are equal, number by number; NaN equals NaN. `tolerance` is relative."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key], tolerance) for key in first)
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(same(*pair, tolerance) for pair in zip(first, second))
    one, other = numeric(first), numeric(second)
    if one is None or other is None:
        return one is other and (first is second or type(first) is type(second) and bool(first == second))
    return one.shape == other.shape and np.allclose(one, other, rtol=tolerance, atol=0, equal_nan=True)


def shown(value: Any) -> str:
    """Formats a number, an array or any other value in one line, with few digits."""
    array = numeric(value)
    if array is None:
        return shortened(repr(value))
    if array.ndim == 0:
        return f'{array:.4g}'
    return shortened('[' + ', '.join(shown(each) for each in array) + ']')


def shortened(text: str) -> str:
    """Returns a text in one line, cut to 80 characters."""
    text = ' '.join(text.split())
    return text if len(text) <= 80 else text[:77] + '...'


def counted(number: int, noun: str, plural: str = '') -> str:
    """Returns '1 share', '2 shares'."""
    return f'{number} {noun if number == 1 else plural or noun + "s"}'


@contextlib.contextmanager
def readers_functions() -> Iterator[None]:
    """Context for the reader's code: functions of `_MODULES` that it replaces are restored at the end."""
    before = [dict(vars(module)) for module in _MODULES]
    for module, functions in zip(_MODULES, _replaced):
        vars(module).update(functions)
    try:
        with np.errstate():
            yield
    finally:
        for i, functions in enumerate(before):
            now = vars(_MODULES[i])
            _replaced[i] = {key: value for key, value in now.items() if functions.get(key, now) is not value}
            for key in _replaced[i].keys() - functions.keys():
                del now[key]
            now.update(functions)


def _evaluated(value, v1):
    """Returns the value of a tensor or variable as an array; a new session computes it if it belongs to a graph."""
    try:
        return value.numpy()
    except (AttributeError, NotImplementedError):  # a value of a graph
        with value.graph.as_default(), v1.Session() as session:
            session.run(v1.global_variables_initializer())
            return session.run(value)


def _name(function, number):
    """Returns the name of a parameter of a function, or its number if it has no name."""
    try:
        return list(inspect.signature(function).parameters)[number]
    except (TypeError, ValueError, IndexError):
        return str(number + 1)


def _line(error, function):
    """Returns ' in line N', the last line of the reader's file in an exception's traceback, or ''."""
    code = getattr(inspect.unwrap(function), '__code__', None)
    file = code.co_filename if code else getattr(sys.modules.get('written'), '__file__', None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f' in line {lines[-1]}' if lines else ''


def _message(error):
    text = ' '.join(str(error).split())
    return f': {text[:200]}' if text else ''
