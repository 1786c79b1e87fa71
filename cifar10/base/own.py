"""Functions of the user's own, in a Python file: 'FILE.py:FUNCTION' is imported, and its errors become one line.

Its code may begin as scripts of TensorFlow 1 do; what it changes in TensorFlow and in the process is put back after it.
"""
import contextlib
import contextvars
import functools
import importlib.util
import inspect
import os
import random
import re
import sys
import traceback
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base import own_files
from cifar10.base.errors import UsageError
from cifar10.base.graphs import seeded_graph

_PACKAGE = __package__.partition('.')[0]
# Begins advice that would make two layers share their variables, or TensorFlow's stack of a tf.make_template.
_ADVICE = re.compile(r' Did you mean to set reuse=|\s*[Oo]riginally defined at:')
_NESTING = re.compile('Nesting violated|Improper nesting')  # follows an error after which code left a scope open
_OPERATION = " for '{{node "  # begins the part of a message that shows an operation with its attributes and inputs


class BrokenRule(Exception):
    """The user's code breaks a rule; the message is a phrase that says which one, with the remedy."""


def function(flag: str, name: str, arguments: str) -> Callable:
    """Imports the function that 'FILE.py:FUNCTION' names.

    Args:
      flag: the name of the flag that gives it, such as 'network', for messages.
      name: the flag's value.
      arguments: that it will be called with, such as 'images, num_classes, training'.

    Raises:
      UsageError: there is no such file or function, the file cannot be imported, or the function takes other arguments.
    """
    path, _, attribute = name.rpartition(':')
    if not os.path.isfile(path):
        raise UsageError(f'--{flag}={name}: there is no file {path}; give its path as --{flag}=FILE.py:FUNCTION')
    with usage_errors(flag, name):
        found = getattr(_loaded(path).module, attribute, None)
    if not callable(found):
        raise UsageError(f'--{flag}={name}: {path} has no function {attribute}')
    try:
        inspect.signature(found).bind(*arguments.split(', '))
    except ValueError:  # it has no signature that Python knows
        pass
    except TypeError as error:
        raise UsageError(f'--{flag}={name}: {error}; it is called with ({arguments})') from error

    @functools.wraps(found)
    def call(*values):
        if _files[path].draws and _files[path].seed != _seed():
            execute_again(path)
        with _files[path].running(), _without_sessions(tf.get_default_graph()):
            return getattr(_files[path].module, attribute)(*values)
    return call


@contextlib.contextmanager
def _without_sessions(graph):
    """Context in which no session runs a graph: it is being built, and its variables have no values yet."""
    run = tf.Session.run

    def refuse(session, *args, **kwargs):
        if session.graph is graph:
            frames = [(frame.filename, frame.lineno) for frame in traceback.extract_stack()]
            raise BrokenRule('it runs a session while the graph is built, where no variable has a value yet'
                             f'{own_files.place(frames)}; give variables their values as initializer=')
        return run(session, *args, **kwargs)
    tf.Session.run = tf.InteractiveSession.run = refuse
    try:
        yield
    finally:
        tf.Session.run = tf.InteractiveSession.run = run


class _CommandLine:
    """Stands for `tf.app` and `tf.flags`, which would read the trainer's command line."""

    def __getattr__(self, name):
        raise AttributeError('the command line is that of the trainer, so tf.app and tf.flags cannot be used: write '
                             "constants, and tf.app.run() below if __name__ == '__main__'")


# What a user's file finds in TensorFlow: without effect is what is done already, or would change later runs.
_SUBSTITUTES = dict(
    dict.fromkeys(('disable_eager_execution', 'enable_eager_execution', 'enable_v2_behavior', 'disable_tensor_equality',
                   'disable_control_flow_v2', 'disable_resource_variables', 'enable_resource_variables'), lambda: None),
    app=_CommandLine(), flags=_CommandLine(), disable_v2_behavior=tf.disable_v2_tensorshape)


class _File:
    """A user's file that was executed.

    Attributes:
      module: the file as a module.
      imported: the modules from its folder that it has imported so far, by their names; no other file has them.
      sha256: as `own_files.sha256` returns it.
      old_shapes: whether it asked for the shapes of TensorFlow 1, in which a dimension is an object with a `value`.
      seed: with which it was executed, as `_seed` returns it.
      draws: whether it drew random numbers then, so that with another seed it is another file.
    """

    def __init__(self, path: str):
        self._path = path
        self._folder = os.path.dirname(os.path.abspath(path))
        self.imported = {}
        self.sha256 = {os.path.basename(path): own_files.hash_of(path)}
        self.old_shapes = False
        spec = importlib.util.spec_from_file_location(f'own code in {path}', path)
        self.module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = self.module  # dataclasses look up their module there
        self.seed = _seed()
        with seeded_graph(tf.get_default_graph().seed or 0), self.running('file'):
            before = _generators()
            spec.loader.exec_module(self.module)
            self.draws = _generators() != before

    @contextlib.contextmanager
    def running(self, part: str = 'call') -> Iterator[None]:
        """Context in which a part of the code runs, 'file' or 'call'; each has random numbers of its own.

        Afterwards TensorFlow and the process are as they were.
        """
        values = [(sys, 'argv', [self._path]), (sys, 'path', [*sys.path, self._folder]),
                  *((module, name, value) for module in (tf, tf.compat.v1) for name, value in _SUBSTITUTES.items())]
        had_old_shapes, others = _has_old_shapes(), self._take_modules()
        with contextlib.ExitStack() as stack:
            seed = _seed()
            stack.callback(random.setstate, random.getstate())
            stack.callback(np.random.set_state, np.random.get_state())
            random.seed(None if seed is None else f'{seed} {part}')
            np.random.seed(None if seed is None else [seed, *part.encode()])
            for owner, name, value in values:
                stack.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, value)
            sys.modules.update(self.imported)
            _set_old_shapes(self.old_shapes)
            try:
                yield
            except BaseException as error:  # modules whose import has failed are no longer modules
                for frame, _ in traceback.walk_tb(error.__traceback__):
                    if self._is_from_folder(frame.f_globals.get('__name__', ''), frame.f_code.co_filename):
                        name = os.path.relpath(frame.f_code.co_filename, self._folder)
                        own_files.executed[self._path].setdefault(name, None)
                raise
            finally:
                self.old_shapes = _has_old_shapes()
                _set_old_shapes(had_old_shapes)
                self.imported = self._take_modules()
                sys.modules.update(others)
                for file in [module.__file__ for module in self.imported.values()]:
                    self.sha256.setdefault(os.path.relpath(file, self._folder), own_files.hash_of(file))

    def _take_modules(self):
        """Takes the modules that were imported from the folder out of those of the process; returns them by name."""
        names = [name for name, module in list(sys.modules.items())
                 if self._is_from_folder(name, getattr(module, '__file__', None) or '')]
        return {name: sys.modules.pop(name) for name in names}

    def _is_from_folder(self, name, file):
        if not file.startswith(self._folder) or name.partition('.')[0] == _PACKAGE:
            return False
        stem = os.path.splitext(file)[0].removesuffix(os.sep + '__init__')
        return stem == os.path.join(self._folder, *name.split('.'))


_is_unseeded = contextvars.ContextVar('_is_unseeded', default=False)


@contextlib.contextmanager
def unseeded() -> Iterator[None]:
    """Context in which the user's code finds the generators of Python and NumPy in another state each time."""
    token = _is_unseeded.set(True)
    try:
        yield
    finally:
        _is_unseeded.reset(token)


def _seed():
    """Returns the seed with which the user's code finds these generators; None for another one each time."""
    return None if _is_unseeded.get() else (tf.get_default_graph().seed or 0) % 2 ** 32


def _generators():
    """Returns the state of the generators, for comparison."""
    return random.getstate(), [np.asarray(part).tolist() for part in np.random.get_state()]


def _has_old_shapes():
    return not isinstance(tf.TensorShape([1])[0], int)


def _set_old_shapes(wanted):
    (tf.disable_v2_tensorshape if wanted else tf.enable_v2_tensorshape)()


_files = {}  # path -> _File


def _loaded(path):
    """Returns the _File of a path. It is executed only once, because that may have side effects; again if edited."""
    if path not in _files or own_files.changed(path, own_files.sha256(path)):
        execute_again(path)
    return _files[path]


def code_of(name: str) -> contextlib.AbstractContextManager:
    """Returns the context in which other code of the file of 'FILE.py:FUNCTION' runs, such as a method."""
    return _files[name.rpartition(':')[0]].running()


def execute_again(path: str) -> None:
    """Executes a user's file again, as another process would; its functions are then those of this execution."""
    own_files.executed.setdefault(path, {os.path.basename(path): None})  # for the line of an error
    _files[path] = _File(path)
    own_files.executed[path] = _files[path].sha256


@contextlib.contextmanager
def usage_errors(flag: str, name: str, for_shapes: str = '') -> Iterator[None]:
    """Context that turns any exception of the user's code into a UsageError of one line.

    Args:
      flag, name: as `function` takes them.
      for_shapes: what ends the message if an operation does not take the shapes that it is given.
    """
    try:
        yield
    except UsageError:
        raise
    except BrokenRule as rule:
        raise UsageError(f'--{flag}={name}: {rule}') from rule
    except (Exception, SystemExit) as error:
        while error.__context__ and _NESTING.search(str(error)):
            error = error.__context__
        if isinstance(error, UsageError):
            raise error
        # An operation refused its inputs while the graph was built: TensorFlow's message then has it.
        message, is_operations, _ = str(error).partition(_OPERATION)
        message = ' '.join(_ADVICE.split(message)[0].split())
        frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and error.lineno:
            frames.append((error.filename, error.lineno))
        text = f"{type(error).__name__}: {message or 'no message'}"
        is_second_call = tf.get_variable_scope().reuse or 'originally defined at:' in str(error)  # (a tf.make_template)
        remedy = _remedy(text, is_second_call) + (for_shapes if is_operations and isinstance(error, ValueError) else '')
        raise UsageError(f'--{flag}={name}: {text}{own_files.place(frames)}{remedy}') from error


# (what the text of an error has, what to do) for errors that TensorFlow 1 code meets in TensorFlow 2, or in a tower.
_REMEDIES = (
    (r"not available with Keras 3|module 'tensorflow\S*' has no attribute '(layers|contrib)'|"
     r"tensorflow\S*\.(layers|contrib)|'tf_slim'",
     'docs/your-own.md says what to write in place of tf.layers and contrib'),
    (r'already exists, disallowed\.$', 'give each layer a tf.variable_scope of its own'),
    (r'elements of \[None\b|partially known TensorShape \(None\b|NoneType',
     'the number of images is unknown in evaluation: write -1 in its place, as in tf.reshape(x, [-1, size])'),
    ('must be from the same graph',
     'a tensor that is made outside the function belongs to another graph: make it in the function'),
    ('Argument `learning_rate` should be float',
     'an optimizer of Keras cannot be used: return a tf.compat.v1.train.Optimizer'),
    (r'\bfloat32\b.*\b(bfloat16|float16|half)\b|\b(bfloat16|float16|half)\b.*float32\b',
     'cast variables to the type of the images, or use --precision=fp32'),
    (r'tf\.reset_default_graph\(\)', 'leave it out: the graph is new'),
    ("'(int|NoneType)' object has no attribute 'value'",
     'leave out .value, or call tf.disable_v2_behavior() at the top of the file'),
    ('does not exist, or was not created with', 'leave out reuse: the towers share variables without it'),
    ('pred must not be a Python bool', '`training` is True or False: write x = f(x) if training else g(x)'),
    (r'^SystemExit: 2', 'the file is imported without arguments: give each a default'))


def _remedy(text, is_second_call):
    """Returns what to do about an error, to be added to its text."""
    if is_second_call and 'was not created with' in text:
        return '; variables need the same names at each call: keep no counter and no tf.make_template between calls'
    missing = re.search(r"module 'tensorflow(?:\._api\.v2\.(\w+))?' has no attribute '(\w+)'", text)
    if missing and hasattr(getattr(tf, missing[1] or '', tf), missing[2]):
        return '; write import tensorflow.compat.v1 as tf'
    return next((f'; {remedy}' for pattern, remedy in _REMEDIES if re.search(pattern, text)), '')
