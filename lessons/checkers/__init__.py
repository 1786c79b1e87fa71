"""Functions of all checkers: they call a reader's function and compare its result.

For each exercise F a module beside this one has a function

    check_F(function, random) -> str | None

which returns None if the reader's function is right, else the first counterexample as a phrase: 'for shares 3 and 1
with gradients 2 and 6 it returns 4; 3 is right'. It may raise a Fault with the phrase, too. It tries the cases of the
page, and at least twenty that it draws from `random`, a NumPy generator, in sizes that the page does not show. It
computes the right results with NumPy, not with lessons/solutions. The module's HINTS have a list of hints for each F. A
hint is a text, or a pair (pattern, text) for one mistake: it is shown where the regular expression is found in the
counterexample. The hints that are texts are for every counterexample, one after each wrong answer.

A checker runs in a process of its own (child.py), with limits of time and memory. Checkers of exercises that build a
graph use graph.py, which imports TensorFlow; this module must not.
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

# For all exercises, before their own HINTS.
COMMON_HINTS = [('changes its argument', 'make new lists and arrays: `x = x - y` instead of `x -= y`, for example.')]

_MODULES = (builtins, math, np, np.linalg, np.random)  # in which a reader may replace functions
_replaced = [{} for _ in _MODULES]  # by the reader, for each module: {function: what stands in its place}


class Fault(Exception):
    """The reader's function raised an exception or broke a rule; the message is a phrase that says how."""


# Faults of code that does not run, which say nothing about its idea.
DOES_NOT_RUN = re.compile(r'it raises (NameError|UnboundLocalError|AttributeError)\b|it does not end within')


class OutOfTime(BaseException):
    """The reader's code takes too long. A BaseException, so that an `except Exception` there does not stop it."""


def call(function: Callable, *arguments: Any) -> Any:
    """Calls the reader's function twice, each time with copies of the arguments, and returns its result.

    Returns:
      The value in plain types, as `plain` makes it.

    Raises:
      Fault: it raised an exception, changed an argument, or returned something else the second time.
    """
    values = []
    for _ in range(2):
        given = copy.deepcopy(arguments)
        returned = call_once(function, *given)
        values.append(call_once(plain, returned, of=function))  # a generator runs the reader's code here
        for number, (before, after) in enumerate(zip(arguments, given)):
            if not same(before, after):
                raise Fault(f'it changes its argument {_name(function, number)} from {shown(before)} to '
                            f'{shown(after)}; the caller still needs that')
    if not same(*values, tolerance=1e-6):
        raise Fault(f'it returns {shown(values[1])} when it is called a second time; the first time {shown(values[0])}')
    return values[0]


def call_once(function: Callable, *arguments: Any, of: Callable | None = None) -> Any:
    """Calls the reader's function with the arguments themselves, and returns its result, of any type.

    Args:
      of: the reader's function, if `function` is another one that runs its code.

    Raises:
      Fault: it raised an exception, or took too long.
    """
    try:
        # NumPy warns of a division by zero; only the result matters.
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
      None if it is right up to float rounding, else a phrase.
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
      size: the size of the numbers that the answer is computed from, of which 1e-5 may be lost by rounding; by default
        the largest number of `right`.
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
    """Returns a number, an array, or lists of numbers as an array; None for anything else."""
    try:
        array = np.asarray(plain(value))
        if array.dtype.kind == 'V':  # a type of TensorFlow's, such as bfloat16
            array = array.astype(float)
        if array.dtype == object and all(isinstance(each, int) for each in array.flat):  # too large for int64
            array = array.astype(float)
    except (TypeError, ValueError, OverflowError, NotImplementedError):  # lists of different lengths; text
        return None
    return array if array.dtype.kind in 'biuf' else None


def whole(value: Any) -> int | None:
    """Returns a whole number that can index a list as an int; None for anything else, such as 3.0."""
    try:
        return operator.index(plain(value))
    except TypeError:
        return None


def plain(value: Any) -> Any:
    """Returns a value as numbers, arrays, tuples, lists and dicts, as far as it can be made of them.

    Tensors of TensorFlow become arrays, tf.IndexedSlices the pair (values, indices), fractions floats, dataclasses
    tuples, generators, ranges and other iterables lists. What else there is stays as it is.
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
    """Returns whether two values are equal, number by number, where NaN equals NaN; `tolerance` is relative."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key], tolerance) for key in first)
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(same(*pair, tolerance) for pair in zip(first, second))
    one, other = numeric(first), numeric(second)
    if one is None or other is None:
        return one is other and (first is second or type(first) is type(second) and bool(first == second))
    return one.shape == other.shape and np.allclose(one, other, rtol=tolerance, atol=0, equal_nan=True)


def shown(value: Any) -> str:
    """Returns a number, an array or any other value in one line, with few digits."""
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
    """Context for the reader's code: functions of NumPy that it replaces are replaced in this context only."""
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
    """Returns the array of a tensor or variable; one of a graph is computed in a session of its own."""
    try:
        return value.numpy()
    except (AttributeError, NotImplementedError):  # of a graph
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
    """Returns ' in line N', the last line of the reader's file that an exception came through, or ''."""
    code = getattr(inspect.unwrap(function), '__code__', None)
    file = code.co_filename if code else getattr(sys.modules.get('written'), '__file__', None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f' in line {lines[-1]}' if lines else ''


def _message(error):
    text = ' '.join(str(error).split())
    return f': {text[:200]}' if text else ''
