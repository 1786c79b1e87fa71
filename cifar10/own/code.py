"""Imports the user's code, given as 'FILE.py:FUNCTION', and turns its errors into one line.

A file and the user's modules that it imports are executed with the file's folder on the search path. The file may begin
like a TensorFlow 1 script. It is executed again before each later call of a network or a loss.
"""
import contextlib
import copy
import functools
import importlib.util
import inspect
import os
import random
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from cifar10.base import signals
from cifar10.base.errors import UsageError, did_you_mean, listed
from cifar10.base.graphs import has_old_shapes, seeded_graph
from cifar10.base.own_files import Import, changed, executed, hash_of, imported, loaded, place, place_now, sha256
from cifar10.own import tf1
from cifar10.own.patches import patched
from cifar10.own.refusals import BrokenRule

# Matches the start of advice that would make two layers share variables, or of the stack of a tf.make_template.
_ADVICE = re.compile(r' Did you mean to set reuse=|\s*[Oo]riginally defined at:')
_NESTING = re.compile('Nesting violated|Improper nesting')  # follows an error that left a scope open
_OPERATION = " for '{{node "  # begins the part of a message that shows an operation with its attributes and inputs
# TensorFlow 1 scripts begin with these switches. A file is executed in a graph, over resource variables, and the
# switches would affect the rest of the process.
_SWITCHES = ('disable_eager_execution', 'enable_eager_execution', 'enable_v2_behavior', 'disable_tensor_equality',
             'disable_control_flow_v2', 'disable_resource_variables', 'enable_resource_variables')
_ADAPTER = ', a function with these arguments that calls it'
# Argument names in functions for other programs, such as Estimator's model functions.
_NOT_GIVEN = {'labels', 'label', 'targets', 'target', 'y', 'mode', 'params', 'config', 'keep_prob', 'reuse', 'scope'}


class _File:
    """A user's file that was executed.

    Attributes:
      module: the file as a module.
      old_shapes: whether it uses TensorFlow 1 shapes, whose dimensions are objects with a `value`.
      seed: the seed when it was executed, as `_seed` returns it.
      is_used: whether one of its functions was called.
    """

    def __init__(self, path: str):
        self._path = path
        self._folder = os.path.dirname(os.path.abspath(path))
        self.old_shapes = False
        self.is_used = False
        self._flags = _flags_of_a_file()
        spec = importlib.util.spec_from_file_location(f'own code in {path}', path)
        if spec is None or spec.loader is None:
            raise UsageError(f'{path} is not a Python file; give it a name that ends with .py')
        self.module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = self.module  # dataclasses look up their module there
        self.seed = _seed()
        with seeded_graph(tf.get_default_graph().seed or 0), self.running('file'), _without_switches(), \
                tf1.importing() as of_tensorflow_1:
            spec.loader.exec_module(self.module)
            self.old_shapes = has_old_shapes() or bool(of_tensorflow_1)

    @contextlib.contextmanager
    def running(self, part: str = 'call') -> Iterator[None]:
        """Runs a part of the code, 'file' or 'call', within the context. Each part draws separate random numbers.

        The context seeds the generators of Python and NumPy, so that initial values drawn from them repeat.
        """
        loaded = set(sys.modules)
        with unchanged():
            vars(flags.FLAGS).update(vars(self._flags))  # a table of flags has no other state
            seed = _seed()
            random.seed(f'{seed} {part}')
            np.random.seed([seed, *part.encode()])
            _set_old_shapes(self.old_shapes)
            sys.argv, sys.path = [self._path], [self._folder, *sys.path]
            try:
                yield
            except BaseException as error:  # sys.modules lacks a module whose import failed
                for frame, _ in traceback.walk_tb(error.__traceback__):
                    self._note(frame.f_globals.get('__name__', ''), frame.f_code.co_filename)
                raise
            finally:
                for name in set(sys.modules) - loaded:
                    # Avoids getattr, because it loads TensorFlow's lazy modules.
                    known = getattr(sys.modules[name], '__dict__', {})
                    # A folder without __init__.py is a package, but has no file.
                    file = next(filter(None, [known.get('__file__'), *known.get('__path__', ())]), '')
                    self._note(name, file)
                    if name.partition('.')[0] in sys.stdlib_module_names and file in imported:
                        del sys.modules[name]  # other code wants the standard library's

    def _note(self, name, file):
        """Notes a module of this name if it is one of the user's."""
        stem = os.path.splitext(file)[0].removesuffix(os.sep + '__init__')
        if tf1.is_users(file) and stem.endswith(os.path.join('', *name.split('.'))):
            imported.setdefault(file, Import(name, hash_of(file), self._path))


def _flags_of_a_file():
    """Returns a table of flags for a file, marked as parsed.

    The table includes the flags of the process, such as absl's logging flags. A file may redefine them.
    """
    table = flags.FlagValues()
    for name in flags.FLAGS:
        flag = copy.deepcopy(flags.FLAGS[name])
        flag.allow_override = flag.using_default_value = True
        table[name] = flag
    table.mark_as_parsed()
    return table


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Restores the state of the process that user code changed within the context."""
    had_old_shapes, table = has_old_shapes(), dict(vars(flags.FLAGS))
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with signals.restored(), patched({
                (sys, 'argv'): sys.argv, (sys, 'path'): sys.path, (tf, 'RegisterGradient'): _register_gradient}):
            yield
    finally:
        _set_old_shapes(had_old_shapes)
        random.setstate(state)
        np.random.set_state(numpy_state)
        vars(flags.FLAGS).update(table)


_RUN = tf.Session.run


def function(flag: str, name: str, arguments: str, each_time: bool = False) -> Callable:
    """Imports the function that 'FILE.py:FUNCTION' names.

    Args:
      flag: the name of the flag, such as 'network', for messages.
      name: the flag's value.
      arguments: the arguments of later calls, such as 'images, num_classes, training'.
      each_time: whether to execute the file again for each call, so that no state remains from earlier calls.

    Raises:
      UsageError: the file or function does not exist, the import fails, or the arguments do not match.
    """
    path, _, attribute = name.rpartition(':')

    @functools.wraps(_found(flag, name, arguments))
    def call(*values):
        if loaded[path].seed != _seed() or each_time and loaded[path].is_used:
            execute_again(path)
        loaded[path].is_used = True
        tf1.mend()
        with loaded[path].running(), _without_sessions(tf.get_default_graph()), \
                tf1.importing():  # a function may also import modules
            return getattr(loaded[path].module, attribute)(*values)
    return call


def _found(flag, name, arguments):
    """Returns the function for arguments of `function`; raises a UsageError."""
    found = _attribute(flag, name)
    if problem := _wrong_arguments(found, arguments.split(', ')):
        raise UsageError(f'--{flag}={name}: {problem}; it is called with ({arguments})')
    return found


def _attribute(flag, name):
    """Returns the function that 'FILE.py:FUNCTION' names; raises a UsageError."""
    path, _, attribute = name.rpartition(':')
    if not os.path.isfile(path):
        raise UsageError(f'--{flag}={name}: there is no file {path}; give its path as --{flag}=FILE.py:FUNCTION')
    with usage_errors(flag, name):
        if path not in loaded or changed(path, sha256(path)):
            execute_again(path)
    found = getattr(loaded[path].module, attribute, None)
    if not callable(found):
        names = [each for each, value in vars(loaded[path].module).items()
                 if inspect.isfunction(value) and not each.startswith('_')]
        raise UsageError(f'--{flag}={name}: {path} has no function {attribute}{did_you_mean(attribute, names)}; it has '
                         f"{listed(names) or 'none'}")
    return found


def parameters(flag: str, name: str) -> Sequence[str]:
    """Returns the names of the arguments of the function that 'FILE.py:FUNCTION' names; raises a UsageError."""
    try:
        return tuple(inspect.signature(_attribute(flag, name)).parameters)
    except ValueError:  # it has no signature that Python knows
        return ()


def _wrong_arguments(found, given):
    """Returns the reason why a function does not accept arguments of these names, or ''."""
    try:
        parameters = inspect.signature(found).parameters
        inspect.signature(found).bind(*given)
    except ValueError:  # it has no signature that Python knows
        return ''
    except TypeError as error:
        return str(error)
    positional = [name for name, each in parameters.items() if each.kind in (
        each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    for number, parameter in enumerate(positional):  # a different parameter, such as a rate, would get its value
        meant = parameter.removeprefix('is_')
        if meant in given and given.index(meant) != number:
            return f'its argument {parameter} is in the wrong position; write an adapter{_ADAPTER}'
        if number < len(given) and parameter in _NOT_GIVEN and parameter not in given and 'labels' not in given:
            return f'its argument {parameter} would get {given[number]}; write an adapter{_ADAPTER}'
    return ''


def execute_again(path: str) -> None:
    """Executes a user's file again, as a new process would, and replaces its functions."""
    executed[path] = hash_of(path)
    for file, module in list(imported.items()):
        sys.modules.pop(module.name, None)  # a different folder may have a module of the same name
        if module.by == path:
            del imported[file]
    loaded[path] = _File(path)


def _without_sessions(graph):
    """Returns a context that keeps sessions from running a graph under construction: its variables have no values."""
    def refuse(session, *args, **kwargs):
        if session.graph is graph:
            raise BrokenRule('it runs a session while the graph is built, before variables have values'
                             f'{place_now()}; pass initial values as initializer=')
        return _RUN(session, *args, **kwargs)
    return patched({(tf.Session, 'run'): refuse, (tf.InteractiveSession, 'run'): refuse})


def _without_switches():
    """Returns a context that disables TensorFlow's switches, except the switch to TensorFlow 1 shapes."""
    nothing = {(tf, name): lambda: None for name in _SWITCHES}
    return patched({**nothing, (tf, 'disable_v2_behavior'): tf.disable_v2_tensorshape})


_gradients: dict[str, Callable] = {}  # functions that files registered by `tf.RegisterGradient`, by name
_REGISTER_GRADIENT = tf.RegisterGradient


def _register_gradient(name):
    """Stands in for `tf.RegisterGradient`: a file that is executed again replaces the function of its gradient."""
    def register(function):
        if name not in _gradients:
            _REGISTER_GRADIENT(name)(lambda *arguments: _gradients[name](*arguments))
        _gradients[name] = function
        return function
    return register


def _seed():
    """Returns the seed for the generators of the user's code."""
    return (tf.get_default_graph().seed or 0) % 2 ** 32


@contextlib.contextmanager
def shapes(old: bool) -> Iterator[None]:
    """Switches between TensorFlow 1 and 2 shapes within the context."""
    before = has_old_shapes()
    _set_old_shapes(old)
    try:
        yield
    finally:
        _set_old_shapes(before)


def _set_old_shapes(wanted):
    (tf.disable_v2_tensorshape if wanted else tf.enable_v2_tensorshape)()


@contextlib.contextmanager
def usage_errors(flag: str, name: str, for_shapes: str = '') -> Iterator[None]:
    """Turns any exception of the user's code into a UsageError of one line.

    Args:
      flag, name: as `function` takes them.
      for_shapes: the end of the message if an operation rejects the shapes of its inputs.
    """
    try:
        yield
    except UsageError:
        raise
    except BrokenRule as rule:
        raise UsageError(f'--{flag}={name}: {rule}') from rule
    except (Exception, SystemExit) as raised:
        error: BaseException = raised
        while error.__context__ and _NESTING.search(str(error)):
            error = error.__context__
        # An operation refused its inputs while the graph was built: TensorFlow's message then has it.
        message, is_operations, _ = str(error).partition(_OPERATION)
        message = ' '.join(_ADVICE.split(message)[0].split())
        frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and error.filename and error.lineno:
            frames.append((error.filename, error.lineno))
        text = f"{type(error).__name__}: {message or 'no message'}"
        remedy = tf1.remedy(text) or _remedy(text)
        remedy += for_shapes if is_operations and isinstance(error, ValueError) else ''
        raise UsageError(f'--{flag}={name}: {text}{place(frames)}{remedy}') from error


# (part of an error's text, remedy) for errors of TensorFlow 1 code in TensorFlow 2, or in a tower.
_REMEDIES = (
    (r"module 'cifar10(\.\w+)*' has no attribute|cannot import name .* from 'cifar10\b|No module named 'cifar10\.",
     'cifar10 is the name of this program: rename your file'),
    (r"framework\.ops' has no attribute 'Tensor'", 'import tf_slim at the top of the file'),
    (r'\bglobal_step"? already exists', 'training has already created it: use tf.train.get_or_create_global_step()'),
    (r'already exists, disallowed\.$', 'give each layer a tf.variable_scope of its own'),
    (r'elements of [\[(].*\bNone\b|partially known TensorShape|unknown TensorShape|(?<!PathLike object, not )NoneType|'
     'Found None',
     'sizes are unknown with several --sizes and in loops: use tf.shape(x), and pass the axes to tf.squeeze; a '
     'gradient is None if the loss does not depend on the variable'),
    ('must be from the same graph',
     'a tensor from outside the function belongs to a different graph: create it in the function'),
    (r'has DataType int\d+ not in list of allowed values: .*float32',
     'integers, such as the global step in tf.global_variables(), need a cast; or use tf.trainable_variables()'),
    ("'(int|NoneType)' object has no attribute 'value'",
     'remove .value, or call tf.disable_v2_behavior() at the top of the file'),
    ('does not exist, or was not created with', 'remove reuse: the towers share variables without it'))


def _remedy(text):
    """Returns a remedy to append to the text of an error."""
    missing = re.search(r"module 'tensorflow(?:\._api\.v2\.(\w+))?' has no attribute '(\w+)'", text)
    if missing and hasattr(getattr(tf, missing[1] or '', tf), missing[2]):
        return '; write import tensorflow.compat.v1 as tf'
    return next((f'; {remedy}' for pattern, remedy in _REMEDIES if re.search(pattern, text)), '')
