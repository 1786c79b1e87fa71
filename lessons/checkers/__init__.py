"""What the checkers of the exercises share: calling a reader's function, and comparing what it returns.

Each module beside this one has a function `check(function)`. It returns None if the function is right, else the
first counterexample as a phrase: 'for shares 3 and 1 with gradients 2 and 6 it returns 4; 3 is right'. It computes
what is right with NumPy, not with lessons/solutions.py.
"""
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np


class Fault(Exception):
    """The reader's function raised an exception; the message is a phrase that says which, and in which line."""


def call(function: Callable, *arguments: Any) -> Any:
    """Returns what the reader's function returns.

    Raises:
      NotImplementedError: it is not written yet.
      Fault: it raised another exception.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # NumPy warns of a division by zero; what matters is what is returned
            return function(*arguments)
    except NotImplementedError:
        raise
    except Exception as error:
        message = ' '.join(str(error).split())
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename == function.__code__.co_filename]
        where = f' in line {lines[-1]}' if lines else ''
        raise Fault(f'it raises {type(error).__name__}{where}: {message}') from error


def compare(function: Callable, arguments: tuple, right: Any, case: str) -> str | None:
    """Calls the reader's function and compares what it returns with what is right.

    Args:
      arguments: the function's arguments; use fresh ones for each call, as it may change them.
      right: a number or an array.
      case: the arguments in words and numbers, such as 'shares 3 and 1'.

    Returns:
      None if it is right up to float rounding, else a phrase.
    """
    try:
        returned = call(function, *arguments)
    except Fault as fault:
        return f'for {case} {fault}'
    difference = mismatch(returned, right)
    return difference and f'for {case} {difference}'


def mismatch(returned: Any, right: Any) -> str | None:
    """Returns None if `returned` equals `right`, an array or a number, up to float rounding, else a phrase."""
    right = np.asarray(right)
    array = numeric(returned)
    if array is None:
        kind = 'an array of numbers' if right.ndim else 'a number'
        return f'it returns {shortened(repr(returned))}, which is not {kind}'
    if array.shape != right.shape:
        return f'it returns {shown(array)} of shape {array.shape}; shape {right.shape} is right'
    if not np.allclose(array, right, rtol=1e-5, atol=1e-7):
        return f'it returns {shown(array)}; {shown(right)} is right'
    return None


def numeric(value: Any) -> np.ndarray | None:
    """Returns a number, an array or lists of numbers as an array; None for anything else."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, NotImplementedError):  # lists of different lengths; a tensor of a graph
        return None
    return array if array.dtype.kind in 'biuf' else None


def shown(values: Any) -> str:
    """Returns a number or an array in one line, with few digits."""
    values = np.asarray(values)
    if values.ndim == 0:
        return f'{values:.4g}'
    return shortened('[' + ', '.join(shown(value) for value in values) + ']')


def shortened(text: str) -> str:
    """Returns a text, cut to 80 characters."""
    return text if len(text) <= 80 else text[:77] + '...'
