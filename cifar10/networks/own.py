"""A user's own network: a function in a Python file, which must follow the rules that towers need.

    def network(images, num_classes, training):  # plain graph code
        ...
        return logits

Each tower calls the function again, over the same variables.
"""
import contextlib
import functools
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from cifar10.errors import UsageError
from cifar10.networks import NUM_CLASSES, Network
from cifar10.networks.rehearsal import describe, rehearse

# What Python says where code uses the layers of TensorFlow 1, which Keras 3 does not have.
_GONE = r"not available with Keras 3|module 'tensorflow\S*' has no attribute '(layers|contrib)'|tensorflow\S*\.layers"
_OPERATION = " for '{{node "  # begins the part of a message that shows an operation with its attributes and inputs


def network(name: str) -> Network:
    """Imports the network that 'FILE.py:FUNCTION' names."""
    path, _, attribute = name.rpartition(':')
    if not os.path.isfile(path):
        raise UsageError(f'--network={name}: there is no file {path}; give its path as '
                         '--network=FILE.py:FUNCTION')
    with open(path, 'rb') as stream:
        function = _function(name, path, attribute, stream.read())
    return Network(functools.partial(_inference, name, function), check=functools.partial(_check, name))


@functools.cache  # the file is executed only once, because that may have side effects; again if it was edited
def _function(name, path, attribute, content):
    del content
    spec = importlib.util.spec_from_file_location('own_network', path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.append(folder)  # so that the file can import modules from its own folder
    with _usage_errors(name, ' cannot be imported'):
        spec.loader.exec_module(module)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UsageError(f'--network={name}: {path} has no function {attribute}')
    return function


def _inference(name: str, function: Callable, images: tf.Tensor, training: bool = False,
               num_classes: int = NUM_CLASSES) -> tf.Tensor:
    """Builds the user's network and checks what it returns; see `Network.inference`."""
    height, width = images.shape[1:3]
    fed = f'is fed {height}x{width} images' if height else 'is fed images of several sizes'
    with _usage_errors(name, fed=fed):
        logits = function(images, num_classes, training)
        if not _are_logits(logits, images, num_classes):
            raise UsageError(f'--network={name}: it returns {describe(logits)}; return logits, float [images, '
                             f'{num_classes}] (it {fed}, {describe(images)})')
        return tf.cast(logits, tf.float32)


def _are_logits(result, images, num_classes):
    """Returns whether what a network returned is a float tensor [n, num_classes] for n images."""
    if not isinstance(result, tf.Tensor) or not result.dtype.is_floating or result.shape.rank != 2:
        return False
    return result.shape.as_list()[1] == num_classes and result.shape[:1].is_compatible_with(images.shape[:1])


def _check(name: str, *arguments) -> list[str]:
    """Raises a UsageError if the network breaks a rule; returns warnings. The arguments are those of `rehearse`."""
    with _usage_errors(name):
        found = rehearse(*arguments)
    if found.violation:
        raise UsageError(f'--network={name}: {found.violation}')
    return [f'warning: --network={name}: {warning}' for warning in found.warnings]


@contextlib.contextmanager
def _usage_errors(name, failure='', fed=None):
    """Context that turns any exception of the user's code into a UsageError.

    Args:
      name: of the network.
      failure: what is said after the name.
      fed: what is said instead if an operation does not take the shapes that it is given; None if there is no image.
    """
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        path = name.rpartition(':')[0]
        what = _describe_error(error, path)
        if fed and _is_about_shapes(error):
            failure = f' {fed}'
            what += '; build it for this size, or change --image_size'
        raise UsageError(f'--network={name}{failure}: {what}') from error


def _is_about_shapes(error):
    """Returns whether an operation refused its inputs while the graph was built: TensorFlow's message then has it."""
    return isinstance(error, ValueError) and _OPERATION in str(error)


def _describe_error(error, path):
    """Returns an error of the user's code in one line, with the line of their file that raised it."""
    line_numbers = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
                    if os.path.abspath(frame.filename) == os.path.abspath(path)]
    if isinstance(error, SyntaxError):
        line_numbers = [error.lineno]
    text = ' '.join(str(error).partition(_OPERATION)[0].split()) or 'no message'
    place = f' (line {line_numbers[-1]} of {path})' if line_numbers else ''
    return f'{type(error).__name__}: {text}{place}{_remedy(text)}'


def _remedy(text):
    """Returns what to do about an error that TensorFlow 1 code meets in TensorFlow 2, to be added to its text."""
    if re.search(_GONE, text):
        return '; docs/your-own.md has a table of what to write in place of tf.layers'
    missing = re.search(r"module 'tensorflow' has no attribute '(\w+)'", text)
    if missing and hasattr(tf, missing[1]):
        return '; write import tensorflow.compat.v1 as tf'
    if re.search(r'float32\b.*\b(bfloat16|float16|half)\b|\b(bfloat16|float16|half)\b.*float32\b', text):
        return '; cast variables to the type of the images, or use --precision=fp32'
    return ''
