"""The libraries of TensorFlow 1 that come with the extra `tf1`: tf_keras, which has tf.layers, and tf_slim.

Neither is imported here. Only this file adds what they miss in today's TensorFlow.
"""
import importlib.util
import linecache
import os
import re
import sys
import warnings
from collections.abc import Sequence

_SWITCH = 'TF_USE_LEGACY_KERAS'  # TensorFlow reads it when it is imported
_MISSING = re.compile(r"not available with Keras 3|module 'tensorflow\S*' has no attribute '(layers|contrib)'|"
                      r"tensorflow\S*\.(layers|contrib)|ModuleNotFoundError: .*\btf_(slim|keras)\b")
_CONTRIB = re.compile(r'\bcontrib\b[. ]*(?:import )?([\w.]*)')  # in a line of code; the name in contrib
_IN_SLIM = re.compile(r'(?:layers|slim|framework)(?:\.(\w+))?$')  # parts of contrib that tf_slim has
_INSTALL = "python -m pip install -e '.[tf1]'"
_PAGE = 'docs/tf1-networks.md'


def switch_on() -> None:
    """Lets TensorFlow find tf.layers in tf_keras, if that is installed; to be called before TensorFlow is imported."""
    if importlib.util.find_spec('tf_keras'):
        os.environ.setdefault(_SWITCH, '1')
        # One for each layer of each tower.
        warnings.filterwarnings('ignore', r'`(tf\.layers\.\w+|tf\.nn\.rnn_cell\.\w+|layer\.apply)` is deprecated')


def mend() -> None:
    """Adds what tf_slim 1.1.0 does not find in today's TensorFlow; to be called before tf_slim is used."""
    import tensorflow.compat.v1 as tf
    # `slim.batch_norm` asks TensorFlow for a module by the name that it had in tf_keras 2.15.
    sys.modules.setdefault('tf_keras.legacy_tf_layers.normalization', tf.layers)
    utils = sys.modules.get('tf_slim.layers.utils')
    if utils and not hasattr(utils.ops, 'Tensor'):  # which TensorFlow has moved
        utils.ops.Tensor = tf.Tensor


def remedy(text: str, frames: Sequence[tuple[str, int]]) -> str:
    """Returns what to do about an error of code that uses tf.layers, slim or contrib; '' if it is another one.

    Args:
      text: of the error.
      frames: (file, line) pairs, the last where it was raised.
    """
    if not _MISSING.search(text):
        return ''
    found = [match for frame in frames for match in _CONTRIB.finditer(linecache.getline(*frame))]
    if found:
        name = found[-1][1]
        if part := _IN_SLIM.match(name):
            there = f'tf_slim.{part[1]} now, after `import tf_slim`' if part[1] else 'tf_slim now'
            install = '' if importlib.util.find_spec('tf_slim') else f' ({_INSTALL})'
            return f'; contrib.{name} is {there}{install}; see contrib in {_PAGE}'
        return f'; {_PAGE} lists by name what to use instead of contrib'
    if importlib.util.find_spec('tf_keras') and 'tf_slim' not in text:
        return f'; set {_SWITCH}=1 before TensorFlow is imported'
    return f'; {_INSTALL} installs it; {_PAGE} says what to write without it'
