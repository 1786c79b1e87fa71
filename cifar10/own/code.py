"""Code of the user's own, in Python files: 'FILE.py:FUNCTION' is imported, and its errors become one line.

A file is executed with its folder on the search path, and so are the user's modules that it imports. It may begin as
scripts of TensorFlow 1 do. Before each further call of a network or a loss it is executed again.
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

# Begins advice that would make two layers share their variables, or TensorFlow's stack of a tf.make_template.
_ADVICE = re.compile(r' Did you mean to set reuse=|\s*[Oo]riginally defined at:')
_NESTING = re.compile('Nesting violated|Improper nesting')  # follows an error after which code left a scope open
_OPERATION = " for '{{node "  # begins the part of a message that shows an operation with its attributes and inputs
# Switches of TensorFlow that scripts of TensorFlow 1 begin with: a file is executed in a graph, over resource
# variables, and they would hold for the rest of the process.
_SWITCHES = ('disable_eager_execution', 'enable_eager_execution', 'enable_v2_behavior', 'disable_tensor_equality',
             'disable_control_flow_v2', 'disable_resource_variables', 'enable_resource_variables')
# Names of arguments that functions for other programs have, such as Estimator's model functions.
_NOT_GIVEN = {'labels', 'label', 'targets', 'target', 'y', 'mode', 'params', 'config', 'keep_prob', 'reuse', 'scope'}


class _File:
    """A user's file that was executed.

    Attributes:
      module: the file as a module.
      old_shapes: whether it has the shapes of TensorFlow 1, in which a dimension is an object with a `value`.
      seed: with which it was executed, as `_seed` returns it.
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
        """Context in which a part of the code runs, 'file' or 'call'; each has random numbers of its own.

        The generators of Python and NumPy are seeded, so that initial values which the code draws repeat.
        """
        loaded = set(sys.modules)
        with unchanged():
            vars(flags.FLAGS).update(vars(self._flags))  # which are all that a table of flags knows
            seed = _seed()
            random.seed(f'{seed} {part}')
            np.random.seed([seed, *part.encode()])
            _set_old_shapes(self.old_shapes)
            sys.argv, sys.path = [self._path], [self._folder, *sys.path]
            try:
                yield
            except BaseException as error:  # modules whose import has failed are no longer modules
                for frame, _ in traceback.walk_tb(error.__traceback__):
                    self._note(frame.f_globals.get('__name__', ''), frame.f_code.co_filename)
                raise
            finally:
                for name in set(sys.modules) - loaded:
                    # Not by getattr, with which TensorFlow's lazy modules load what they stand for.
                    known = getattr(sys.modules[name], '__dict__', {})
                    # A folder without __init__.py is a package, but has no file.
                    file = next(filter(None, [known.get('__file__'), *known.get('__path__', ())]), '')
                    self._note(name, file)
                    if name.partition('.')[0] in sys.stdlib_module_names and file in imported:
                        del sys.modules[name]  # others mean the module of the standard library

    def _note(self, name, file):
        """Notes a module of this name if it is one of the user's."""
        stem = os.path.splitext(file)[0].removesuffix(os.sep + '__init__')
        if tf1.is_users(file) and stem.endswith(os.path.join('', *name.split('.'))):
            imported.setdefault(file, Import(name, hash_of(file), self._path))


def _flags_of_a_file():
    """Returns a table of flags for a file, in which they count as parsed.

    It has the flags of the process as well, such as those by which absl logs. A file may define them in its own way.
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
    """Context after which the process is as before, whatever user's code has run in it."""
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
      flag: the name of the flag that gives it, such as 'network', for messages.
      name: the flag's value.
      arguments: that it will be called with, such as 'images, num_classes, training'.
      each_time: whether each call finds the file as another process would, without what it has kept of other calls.

    Raises:
      UsageError: there is no such file or function, the file cannot be imported, or the function takes other arguments.
    """
    path, _, attribute = name.rpartition(':')

    @functools.wraps(_found(flag, name, arguments))
    def call(*values):
        if loaded[path].seed != _seed() or each_time and loaded[path].is_used:
            execute_again(path)
        loaded[path].is_used = True
        tf1.mend()
        with loaded[path].running(), _without_sessions(tf.get_default_graph()), \
                tf1.importing():  # a function may import, too
            return getattr(loaded[path].module, attribute)(*values)
    return call


def _found(flag, name, arguments):
    """Returns the function, as `function` takes these; raises a UsageError."""
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
    """Returns why a function cannot be called with arguments of these names, or ''."""
    try:
        parameters = inspect.signature(found).parameters
        inspect.signature(found).bind(*given)
    except ValueError:  # it has no signature that Python knows
        return ''
    except TypeError as error:
        return str(error)
    positional = [name for name, each in parameters.items() if each.kind in (
        each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    for number, parameter in enumerate(positional):  # another one would get its value, such as a weight decay
        meant = parameter.removeprefix('is_')
        if meant in given and given.index(meant) != number:
            return f'its argument {parameter} is in another place, so it needs an adapter'
        if number < len(given) and parameter in _NOT_GIVEN and parameter not in given and 'labels' not in given:
            return (f'its argument {parameter} would get {given[number]}; write an adapter, a function with these '
                    'arguments that calls it')
    return ''


def execute_again(path: str) -> None:
    """Executes a user's file again, as another process would; its functions are then those of this execution."""
    executed[path] = hash_of(path)
    for file, module in list(imported.items()):
        sys.modules.pop(module.name, None)  # another folder may have a module of the same name
        if module.by == path:
            del imported[file]
    loaded[path] = _File(path)


def _without_sessions(graph):
    """Returns the context in which no session runs a graph that is being built: its variables have no values yet."""
    def refuse(session, *args, **kwargs):
        if session.graph is graph:
            raise BrokenRule('it runs a session while the graph is built, where no variable has a value yet'
                             f'{place_now()}; give variables their values as initializer=')
        return _RUN(session, *args, **kwargs)
    return patched({(tf.Session, 'run'): refuse, (tf.InteractiveSession, 'run'): refuse})


def _without_switches():
    """Returns the context in which TensorFlow's switches do nothing, except the one to the shapes of TensorFlow 1."""
    nothing = {(tf, name): lambda: None for name in _SWITCHES}
    return patched({**nothing, (tf, 'disable_v2_behavior'): tf.disable_v2_tensorshape})


_gradients: dict[str, Callable] = {}  # what files have registered by `tf.RegisterGradient`, by its name
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
    """Returns the seed with which the user's code finds these generators."""
    return (tf.get_default_graph().seed or 0) % 2 ** 32


@contextlib.contextmanager
def shapes(old: bool) -> Iterator[None]:
    """Context in which shapes are those of TensorFlow 1, or not."""
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


# (what the text of an error has, what to do) for errors that TensorFlow 1 code meets in TensorFlow 2, or in a tower.
_REMEDIES = (
    (r"module 'cifar10(\.\w+)*' has no attribute|cannot import name .* from 'cifar10\b|No module named 'cifar10\.",
     'cifar10 is the name of this program: give your file another name'),
    (r"framework\.ops' has no attribute 'Tensor'", 'import tf_slim at the top of the file'),
    (r'\bglobal_step"? already exists', 'training has made it: use tf.train.get_or_create_global_step()'),
    (r'already exists, disallowed\.$', 'give each layer a tf.variable_scope of its own'),
    (r'elements of [\[(].*\bNone\b|partially known TensorShape|unknown TensorShape|(?<!PathLike object, not )NoneType|'
     'Found None',
     'with several --sizes, and in a loop, a size may be unknown: use tf.shape(x), and name the axes of a tf.squeeze; '
     'and the gradient of what the loss does not depend on is None'),
    ('must be from the same graph',
     'a tensor that is made outside the function belongs to another graph: make it in the function'),
    (r'has DataType int\d+ not in list of allowed values: .*float32',
     'it is an integer, as the global step in tf.global_variables() is: cast it, or use tf.trainable_variables()'),
    ("'(int|NoneType)' object has no attribute 'value'",
     'leave out .value, or call tf.disable_v2_behavior() at the top of the file'),
    ('does not exist, or was not created with', 'leave out reuse: the towers share variables without it'))


def _remedy(text):
    """Returns what to do about an error, to be added to its text."""
    missing = re.search(r"module 'tensorflow(?:\._api\.v2\.(\w+))?' has no attribute '(\w+)'", text)
    if missing and hasattr(getattr(tf, missing[1] or '', tf), missing[2]):
        return '; write import tensorflow.compat.v1 as tf'
    return next((f'; {remedy}' for pattern, remedy in _REMEDIES if re.search(pattern, text)), '')
