"""Provides TensorFlow 1's `tensorflow`, tf.layers, slim and tf.contrib to code written for TensorFlow 1.

The extra `tf1` installs tf_slim, and tf_keras with tf.layers. Neither is imported unless such code uses it. Names added
to third-party modules stay; the substitutes of `code` and `isolated_call` end with the user's code.
"""
import builtins
import contextlib
import functools
import glob
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Iterator

from cifar10.base.startup import LEGACY_KERAS
from cifar10.own import estimator
from cifar10.own.patches import patched

_MISSING = re.compile(r"not available with Keras 3|module 'tensorflow\S*' has no attribute '(layers|contrib)'|"
                      r"tensorflow\S*\.(layers|contrib)|ModuleNotFoundError: .*\btf_(slim|keras)\b|"
                      r"cannot import name .* from 'tf_slim|module 'tf_slim\S* has no attribute")
_IN_SLIM = 'slim', 'layers', 'framework'  # parts of contrib in tf_slim
_PATHS = *_IN_SLIM, 'rnn', 'python', 'ops'  # modules that held names
_IMPORT = builtins.__import__
_ALIAS = re.compile(r'\bimport tensorflow(?: as (\w+))?(?![.\w])')
_IMPORTED = re.compile(r'^\s*(?:from tensorflow import|import tensorflow\.|from tensorflow\.) *(\w+)', re.M)
_PAGE = 'docs/tf1.md'


class _Contrib:
    """Provides the parts of `tf.contrib` in tf_slim and tf: slim, layers, framework and rnn share all names."""

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
        if name == 'data':
            return tf.data.experimental
        if importlib.util.find_spec(f'tf_slim.{name}'):  # includes modules that are not imported yet, such as nets
            return importlib.import_module(f'tf_slim.{name}')
        if hasattr(tf_slim, name):
            return getattr(tf_slim, name)
        if hasattr(tf.nn.rnn_cell, name):
            return getattr(tf.nn.rnn_cell, name)
        if 'rnn' in name and hasattr(tf.nn, name):
            return getattr(tf.nn, name)
        raise AttributeError(f"module 'tensorflow.contrib' has no attribute {name!r}")


def mend() -> None:
    """Adds tf.contrib, and names that tf_slim 1.1.0 misses in today's TensorFlow. Call it before using tf_slim."""
    import tensorflow.compat.v1 as tf
    if not hasattr(tf, 'estimator'):
        tf.estimator = estimator.Estimator()
    if importlib.util.find_spec('tf_slim'):
        tf.contrib = _Contrib()
    # `slim.batch_norm` asks TensorFlow for a module by the name that it had in tf_keras 2.15.
    sys.modules.setdefault('tf_keras.legacy_tf_layers.normalization', tf.layers)
    utils = sys.modules.get('tf_slim.layers.utils')
    if utils and not hasattr(utils.ops, 'Tensor'):  # TensorFlow moved it, and `cond`
        utils.ops.Tensor, utils.ops.IndexedSlices = tf.Tensor, tf.IndexedSlices
        utils.control_flow_ops.cond = lambda *arguments: tf.cond(*arguments)  # looked up at each call


@contextlib.contextmanager
def importing() -> Iterator[list[str]]:
    """Makes `import tensorflow` import TensorFlow 1 in TensorFlow 1 files within the context.

    A user's file is a TensorFlow 1 file if it uses more TensorFlow 1-only names of `tensorflow` than TensorFlow 2-only
    names. A file without such names and without `compat.v1` is also one if another file in its folder is one. Yields a
    list that collects the TensorFlow 1 files.
    """
    found = []

    def is_old(file):
        if is_users(file) and _is_old(file):
            found.append(file)
            return True
        return False
    with patched({(builtins, '__import__'): _importing(is_old)}):
        yield found


def use_tensorflow_1() -> None:
    """Makes `import tensorflow` import TensorFlow 1 in a script and in files that it imports later.

    Call it before anything else: `import cifar10; cifar10.use_tensorflow_1()`. It calls `tf.disable_v2_behavior()`, and
    turns on resource variables. `tf.estimator` has `EstimatorSpec`, `ModeKeys` and `export`; `tf.contrib` has the names
    of tf_slim, if tf_slim is installed. Libraries keep TensorFlow 2.
    """
    import tensorflow.compat.v1 as tf
    verbosity = tf.logging.get_verbosity()
    tf.logging.set_verbosity(tf.logging.ERROR)  # otherwise the next call warns about variables
    tf.disable_v2_behavior()
    tf.enable_resource_variables()
    tf.logging.set_verbosity(verbosity)
    builtins.__import__ = _importing(is_users)


def _importing(is_old):
    """Returns an import function that imports TensorFlow 1 for files that satisfy `is_old`."""
    import tensorflow.compat.v1 as tf
    mend()

    def substitute(name, globals=None, locals=None, fromlist=(), level=0):
        top, *rest = name.split('.')
        file = os.path.abspath((globals or {}).get('__file__') or os.sep)
        if top == 'tensorflow' and not level and rest[:2] != ['compat', 'v1']:
            is_contrib = rest[:1] == ['contrib'] and hasattr(tf, 'contrib')
            if (is_contrib or not rest) and is_old(file):
                return functools.reduce(getattr, rest if fromlist else (), tf)
        return _IMPORT(name, globals, locals, fromlist, level)
    return substitute


def is_users(file: str) -> bool:
    """Returns whether a file belongs to the user rather than to a library or this package."""
    libraries = [*map(sysconfig.get_path, ('stdlib', 'purelib', 'platlib')), os.path.dirname(os.path.dirname(__file__))]
    return os.path.isabs(file) and not file.startswith(tuple(libraries))


def _is_old(file):
    """Returns whether a file is a TensorFlow 1 file, as defined by `importing`."""
    of_1, of_2, names_both = _used(file)
    if of_1 or of_2 or names_both:
        return of_1 > of_2
    beside = glob.glob(f'{glob.escape(os.path.dirname(file))}/*.py')
    return any(of_1 > of_2 for of_1, of_2, _ in map(_used, beside))


def _used(file):
    """Returns (number of TensorFlow 1-only names of `tensorflow` in a file, number of TensorFlow 2-only names, whether
    it names `compat.v1`).
    """
    import tensorflow as tf2
    import tensorflow.compat.v1 as tf
    try:
        with open(file, encoding='utf-8', errors='replace') as stream:
            text = stream.read()
    except OSError:
        return 0, 0, False
    names = {(name, '') for name in _IMPORTED.findall(text)}
    for alias in _ALIAS.findall(text):
        names.update(re.findall(rf'\b{alias or "tensorflow"}\.(\w+)(?:\.(\w+))?', text))

    def only(module, other):
        return sum(_has(module, *name) and not _has(other, *name) for name in names)
    return only(tf, tf2), only(tf2, tf), re.search(r'\bcompat\.v\d', text) is not None


def _has(module, first, second):
    """Returns whether a module has a name such as 'train.Saver'. Checks only `keras` of Keras, which imports slowly."""
    return hasattr(module, first) and (
        not second or first == 'keras' or hasattr(getattr(module, first), second))


def remedy(text: str) -> str:
    """Returns the remedy for an error of code that uses TensorFlow 1 libraries; '' for unrelated errors."""
    if not _MISSING.search(text):
        return ''
    if re.search('contrib|tf_slim', text) or not importlib.util.find_spec('tf_keras') or (
            os.environ.get(LEGACY_KERAS) == '1'):
        return f'; tf.layers, slim and contrib need the extra tf1 and have only the names in {_PAGE}'
    return f'; set {LEGACY_KERAS}=1 before TensorFlow is imported'
