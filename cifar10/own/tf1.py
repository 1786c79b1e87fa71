"""What code of TensorFlow 1 finds in today's TensorFlow: `tensorflow` as it was, and tf.layers, slim and tf.contrib.

The extra `tf1` has tf_keras, in which tf.layers is, and tf_slim. Neither is imported here, unless such code uses it.
What it adds to modules of others stays; what `code` and `traced` replace there ends with the user's code.
"""
import ast
import builtins
import contextlib
import functools
import glob
import importlib.util
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence

from cifar10.base.startup import LEGACY_KERAS
from cifar10.own import estimator

_MISSING = re.compile(r"not available with Keras 3|module 'tensorflow\S*' has no attribute '(layers|contrib)'|"
                      r"tensorflow\S*\.(layers|contrib)|ModuleNotFoundError: .*\btf_(slim|keras)\b|"
                      r"cannot import name .* from 'tf_slim|module 'tf_slim\S* has no attribute")
_OF_TENSORFLOW = re.compile(r"(module|from|No module named) 'tensorflow\b")
_CONTRIB = re.compile(r'\bcontrib\b[. ]*(?:import )?([\w.]*)')  # in a line of code; the name in contrib
_IN_SLIM = 'slim', 'layers', 'framework'  # parts of contrib that tf_slim has
_PATHS = *_IN_SLIM, 'rnn', 'python', 'ops'  # the modules in which names were
_IMPORT = builtins.__import__
_INSTALL = "python -m pip install -e '.[tf1]'"
_PAGE = 'docs/tf1.md'


class _Contrib:
    """`tf.contrib` as far as tf_slim and tf have it: slim, layers, framework and rnn have each other's names."""

    def __getattr__(self, name):
        import tensorflow.compat.v1 as tf
        import tf_slim
        mend()
        if name in _PATHS:
            return self
        if name in ('tpu', 'estimator'):
            return tf.estimator
        if name == 'distributions':
            return tf.distributions
        if importlib.util.find_spec(f'tf_slim.{name}'):  # also one that is not imported yet, such as nets
            return importlib.import_module(f'tf_slim.{name}')
        if hasattr(tf_slim, name):
            return getattr(tf_slim, name)
        if hasattr(tf.nn.rnn_cell, name):
            return getattr(tf.nn.rnn_cell, name)
        if 'rnn' in name and hasattr(tf.nn, name):
            return getattr(tf.nn, name)
        raise AttributeError(f"module 'tensorflow.contrib' has no attribute {name!r}")


def mend() -> None:
    """Adds tf.contrib, and what tf_slim 1.1.0 does not find in today's TensorFlow; to be called before it is used."""
    import tensorflow.compat.v1 as tf
    if not hasattr(tf, 'estimator'):
        tf.estimator = estimator.Estimator()
    if importlib.util.find_spec('tf_slim'):
        tf.contrib = _Contrib()
    # `slim.batch_norm` asks TensorFlow for a module by the name that it had in tf_keras 2.15.
    sys.modules.setdefault('tf_keras.legacy_tf_layers.normalization', tf.layers)
    utils = sys.modules.get('tf_slim.layers.utils')
    if utils and not hasattr(utils.ops, 'Tensor'):  # which TensorFlow has moved, as it has `cond`
        utils.ops.Tensor, utils.ops.IndexedSlices = tf.Tensor, tf.IndexedSlices
        utils.control_flow_ops.cond = lambda *arguments: tf.cond(*arguments)  # what stands for tf.cond at the time


@contextlib.contextmanager
def importing(folder: str) -> Iterator[list[str]]:
    """Context in which files of TensorFlow 1 find it where they import `tensorflow`.

    A file below the folder is one if it uses more of what only TensorFlow 1 has in `tensorflow` than of what only
    TensorFlow 2 has, or if it uses neither, does not name `compat.v1`, and a file beside it is one. Yields a list to
    which such files are added.
    """
    import tensorflow.compat.v1 as tf
    mend()
    found = []

    def substitute(name, globals=None, locals=None, fromlist=(), level=0):
        top, *rest = name.split('.')
        if top == 'tensorflow' and not level and (file := _below(folder, globals)):
            if rest[:1] == ['contrib'] and hasattr(tf, 'contrib') or not rest and _is_old(file):
                found.append(file)
                return functools.reduce(getattr, rest if fromlist else (), tf)
        return _IMPORT(name, globals, locals, fromlist, level)
    builtins.__import__ = substitute
    try:
        yield found
    finally:
        builtins.__import__ = _IMPORT


def _below(folder, module):
    """Returns the file of a module, given its dictionary, if it is below a folder and in no library; else None."""
    file = os.path.abspath((module or {}).get('__file__') or os.sep)
    return file if is_below(folder, file) else None


def is_below(folder: str, file: str) -> bool:
    """Returns whether a file is below a folder and in no library."""
    libraries = [*map(sysconfig.get_path, ('stdlib', 'purelib', 'platlib')), os.path.dirname(os.path.dirname(__file__))]
    return file.startswith(folder + os.sep) and not file.startswith(tuple(libraries))


def _is_old(file):
    """Returns whether a file is one of TensorFlow 1, as `importing` says."""
    import tensorflow as tf2
    import tensorflow.compat.v1 as tf

    def only(module, other, used):
        return sum(_has(module, name) and not _has(other, name) for name in used)
    used = _used(file)
    of_1, of_2 = only(tf, tf2, used), only(tf2, tf, used)
    if of_1 or of_2 or any(re.match(r'compat\.v\d', name) for name in used):
        return of_1 > of_2
    beside = glob.glob(os.path.join(glob.escape(os.path.dirname(file)), '*.py'))
    return any(only(tf, tf2, _used(each)) for each in beside)


def _has(module, name):
    """Returns whether a module has a name such as 'train.Saver'; of Keras, which takes long to import, only `keras`."""
    first, _, second = name.partition('.')
    return hasattr(module, first) and (
        not second or first == 'keras' or hasattr(getattr(module, first), second))


def _used(file):
    """Returns the names that a file uses of the module `tensorflow`, such as 'train.Saver', or imports from there."""
    try:
        with open(file, 'rb') as stream:
            nodes = list(ast.walk(ast.parse(stream.read())))
    except (OSError, SyntaxError, ValueError):  # it is not executed either
        return set()
    imports = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules = {alias.asname or alias.name for alias in imports if alias.name == 'tensorflow'}
    used = [path[1:] for path in map(_path, nodes) if path[:1] and path[0] in modules]
    used += [alias.name.split('.')[1:] for alias in imports if alias.name.startswith('tensorflow.')]
    used += [[*node.module.split('.')[1:], alias.name] for node in nodes if isinstance(node, ast.ImportFrom)
             and (node.module or '').partition('.')[0] == 'tensorflow' for alias in node.names]
    return {'.'.join(path[:2]) for path in used}


def _path(node):
    """Returns the names in an expression such as tf.train.Saver, or none of another expression."""
    if isinstance(node, ast.Attribute):
        return [*path, node.attr] if (path := _path(node.value)) else []
    return [node.id] if isinstance(node, ast.Name) else []


def place_outside(frames: Sequence[tuple[str, int]], folder: str) -> str:
    """Returns the last line of code in no library, as `own_files.place` does, if it is not below a folder; else ''."""
    file, line = ([('', 0)] + [frame for frame in frames if is_below('', frame[0])])[-1]
    return f' (line {line} of {file})' if file and not is_below(os.path.abspath(folder), file) else ''


def remedy(text: str, frames: Sequence[tuple[str, int]], outside: str = '') -> str:
    """Returns what to do about an error of code that uses TensorFlow 1 or its libraries; '' if it is another one.

    Args:
      frames: (file, line) pairs, the last where it was raised.
      outside: what `place_outside` returns: there, `importing` does not put TensorFlow 1 in place of TensorFlow.
    """
    if outside and _OF_TENSORFLOW.search(text):
        return '; put the adapter into a folder above this file, so that it finds TensorFlow 1'
    if not _MISSING.search(text):
        return ''
    found = [match for frame in frames for match in _CONTRIB.finditer(linecache.getline(*frame))]
    if found:
        name = found[-1][1]
        if name.split('.')[0] in _IN_SLIM and not importlib.util.find_spec('tf_slim'):
            return f'; {_INSTALL} installs tf_slim, which has contrib.{name}'
        return f'; tf_slim does not have it; see contrib in {_PAGE}'
    if 'tf_slim' in text and importlib.util.find_spec('tf_slim'):
        return f'; tf_slim does not have it; see contrib in {_PAGE}'
    if importlib.util.find_spec('tf_keras') and 'tf_slim' not in text:
        if os.environ.get(LEGACY_KERAS) == '1':  # so the file imports today's TensorFlow, which has no tf.layers
            return '; write import tensorflow.compat.v1 as tf'
        return f'; set {LEGACY_KERAS}=1 before TensorFlow is imported'
    return f'; {_INSTALL} installs it; {_PAGE} says what to write without it'
