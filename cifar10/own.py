"""Functions of the user's own, in a Python file: 'FILE.py:FUNCTION' is imported, and its errors become one line.

It knows nothing of what such a function is for, such as a network or an optimizer.
"""
import contextlib
import functools
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType

import tensorflow.compat.v1 as tf

from cifar10.errors import UsageError

# What Python says where code uses the layers of TensorFlow 1, which Keras 3 does not have, or contrib.
_GONE = (r"not available with Keras 3|module 'tensorflow\S*' has no attribute '(layers|contrib)'|"
         r'tensorflow\S*\.(layers|contrib)')
_GRAPHS = ' (graphs are <'  # begins the part of a message that shows the addresses of two graphs
_REUSE = ' Did you mean to set reuse=True'  # begins advice that would make two layers share their variables
_OPERATION = " for '{{node "  # begins the part of a message that shows an operation with its attributes and inputs


@contextlib.contextmanager
def graph(seed: int = 0) -> Iterator[tf.Graph]:
    """Context in which a new graph is the default one. Every graph in which a user's function is called is made here.

    It has a seed, because TensorFlow refuses random operations without one where operations must be deterministic.

    Args:
      seed: of the operations that have none of their own.
    """
    with tf.Graph().as_default() as made:
        tf.set_random_seed(seed)
        yield made


def function(flag: str, name: str) -> Callable:
    """Imports the function that 'FILE.py:FUNCTION' names.

    Args:
      flag: the name of the flag that gives it, such as 'network', for messages.
      name: the flag's value.

    Raises:
      UsageError: there is no such file or function, or the file cannot be imported.
    """
    path, _, attribute = name.rpartition(':')
    if not os.path.isfile(path):
        raise UsageError(f'--{flag}={name}: there is no file {path}; give its path as --{flag}=FILE.py:FUNCTION')
    with usage_errors(flag, name, ' cannot be imported'):
        with open(path, 'rb') as stream:
            module = _module(path, stream.read())
    found = getattr(module, attribute, None)
    if not callable(found):
        raise UsageError(f'--{flag}={name}: {path} has no function {attribute}')
    return found


# A file is executed only once, whatever is taken from it, because that may have side effects; again if it was edited.
@functools.cache
def _module(path: str, content: bytes) -> ModuleType:
    del content
    spec = importlib.util.spec_from_file_location(f'own code in {path}', path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.append(folder)  # so that the file can import modules from its own folder
    spec.loader.exec_module(module)
    return module


def check_arguments(function: Callable, arguments: str) -> None:
    """Raises a TypeError if a function of the user's cannot be called with so many arguments.

    Args:
      function: theirs.
      arguments: what it is called with, such as 'images, num_classes, training'.
    """
    try:
        inspect.signature(function).bind(*arguments.split(', '))
    except ValueError:  # it has no signature that Python knows
        pass
    except TypeError as error:
        raise TypeError(f'{error}; it is called with ({arguments})') from error


@contextlib.contextmanager
def usage_errors(flag: str, name: str, failure: str = '', shapes: tuple[str, str] | None = None) -> Iterator[None]:
    """Context that turns any exception of the user's code into a UsageError of one line.

    Args:
      flag, name: as `function` takes them.
      failure: what follows the name in the message.
      shapes: if an operation does not take the shapes that it is given, (what follows the name instead, what ends the
        message); or None.
    """
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        path = name.rpartition(':')[0]
        remedy = ''
        if shapes and _is_about_shapes(error):
            failure, remedy = shapes
        raise UsageError(f'--{flag}={name}{failure}: {_describe_error(error, path)}{remedy}') from error


def _is_about_shapes(error):
    """Returns whether an operation refused its inputs while the graph was built: TensorFlow's message then has it."""
    return isinstance(error, ValueError) and _OPERATION in str(error)


def _describe_error(error, path):
    """Returns an error of the user's code in one line, with the line of their file that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    line_numbers = [frame.lineno for frame in frames if os.path.abspath(frame.filename) == os.path.abspath(path)]
    # In a file that it imports, the line is that of the import.
    if isinstance(error, SyntaxError) and error.lineno and os.path.abspath(error.filename) == os.path.abspath(path):
        line_numbers = [error.lineno]
    text = ' '.join(str(error).partition(_OPERATION)[0].partition(_GRAPHS)[0].partition(_REUSE)[0].split())
    if isinstance(error, NotImplementedError) and any('initialized_value' in (frame.line or '') for frame in frames):
        text = 'resource variables have no initialized_value()'
    place = f' (line {line_numbers[-1]} of {path})' if line_numbers else ''
    return f"{type(error).__name__}: {text or 'no message'}{place}{_remedy(text)}"


def _remedy(text):
    """Returns what to do about an error that TensorFlow 1 code meets in TensorFlow 2, to be added to its text."""
    if re.search(_GONE, text):
        return '; docs/your-own.md says what to write in place of tf.layers and contrib'
    if text.endswith('already exists, disallowed.'):
        return '; give each layer a tf.variable_scope of its own'
    if re.search(r'elements of \[None\b', text):
        return '; the number of images is unknown in evaluation: write -1 in its place, as in tf.reshape(x, [-1, size])'
    if 'must be from the same graph' in text:
        return '; a tensor that is made outside the function belongs to another graph: make it in the function'
    if 'initialized_value()' in text:
        return '; begin with a constant, and take the value of the variable in the first step'
    missing = re.search(r"module 'tensorflow(?:\._api\.v2\.(\w+))?' has no attribute '(\w+)'", text)
    if missing and hasattr(getattr(tf, missing[1] or '', tf), missing[2]):
        return '; write import tensorflow.compat.v1 as tf'
    if re.search(r'float32\b.*\b(bfloat16|float16|half)\b|\b(bfloat16|float16|half)\b.*float32\b', text):
        return '; cast variables to the type of the images, or use --precision=fp32'
    return ''
