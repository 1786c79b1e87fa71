"""The libraries of TensorFlow 1 that come with the extra `tf1`: tf_keras, which has tf.layers, and tf_slim.

Neither is imported here. What they lack with today's TensorFlow is put in its place, in this file only.
"""
import importlib.util
import os
import sys

SWITCH = 'TF_USE_LEGACY_KERAS'  # TensorFlow reads it when it is imported


def switch_on() -> None:
    """Lets TensorFlow find tf.layers in tf_keras, if that is installed; to be called before TensorFlow is imported."""
    if importlib.util.find_spec('tf_keras'):
        os.environ.setdefault(SWITCH, '1')


def mend() -> None:
    """Puts in its place what tf_slim 1.1.0 does not find where it looks; to be called before it is used."""
    import tensorflow.compat.v1 as tf
    # `slim.batch_norm` asks TensorFlow for a module by the name that it had in tf_keras 2.15.
    sys.modules.setdefault('tf_keras.legacy_tf_layers.normalization', tf.layers)
    utils = sys.modules.get('tf_slim.layers.utils')
    if utils and not hasattr(utils.ops, 'Tensor'):  # which TensorFlow has moved
        utils.ops.Tensor = tf.Tensor
