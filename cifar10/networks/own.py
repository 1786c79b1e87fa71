"""A user's own network: a function of a Python file, held to the rules that towers need.

    def network(images, num_classes, training):  # plain graph code
        ...
        return logits

It knows only that each tower calls the function again, over the same variables.
"""
import contextlib
import functools
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from cifar10.errors import UsageError
from cifar10.networks import NUM_CLASSES, Network
from cifar10.networks.rehearsal import described, rehearse


def network(name: str) -> Network:
    """Returns the network that 'FILE.py:FUNCTION' names.

    Raises:
      UsageError: there is no such file or function, or it cannot be imported.
    """
    path, _, attribute = name.rpartition(':')
    if not os.path.isfile(path):
        raise UsageError(f'--network={name}: there is no file {path}; give --network=FILE.py:FUNCTION with its '
                         'place')
    function = _function(name, path, attribute)
    return Network(functools.partial(_inference, name, function), check=functools.partial(_check, name))


@functools.cache  # a file may have side effects
def _function(name, path, attribute):
    spec = importlib.util.spec_from_file_location('own_network', path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where dataclasses look for it
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.append(folder)  # for what the file imports from beside it
    with _told(name, ' cannot be imported'):
        spec.loader.exec_module(module)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UsageError(f'--network={name}: {path} has no function {attribute}')
    return function


def _inference(name: str, function: Callable, images: tf.Tensor, devices: Sequence[str] = ('',),
               training: bool = False, num_classes: int = NUM_CLASSES) -> tf.Tensor:
    """Builds the user's network and checks what it returns; as `Network.inference`, raising UsageErrors."""
    with tf.device(devices[0]), _told(name):
        logits = function(images, num_classes, training)
        if (not isinstance(logits, tf.Tensor) or not logits.dtype.is_floating or logits.shape.rank != 2
                or logits.shape.as_list()[1] != num_classes
                or not logits.shape[:1].is_compatible_with(images.shape[:1])):
            raise UsageError(f'--network={name}: it returns {described(logits)}; return logits, float [images, '
                             f'{num_classes}]')
        return tf.cast(logits, tf.float32)


def _check(name: str, *arguments) -> None:
    """Raises a UsageError if the network breaks a rule; arguments as `rehearse` has them."""
    with _told(name):
        broken = rehearse(*arguments)
    if broken:
        raise UsageError(f'--network={name}: {broken}')


@contextlib.contextmanager
def _told(name, what=''):
    """Context that turns what the user's code raises, of any type, into a UsageError."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f'--network={name}{what}: {_where(error, name.rpartition(":")[0])}') from error


def _where(error, path):
    """Returns an error of the user's code in a line, with the line of their file that it comes from."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if os.path.abspath(frame.filename) == os.path.abspath(path)]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    text = ' '.join(str(error).split()) or 'no message'
    return f'{type(error).__name__}: {text}' + (f' (line {lines[-1]} of {path})' if lines else '')
