"""A user's own network is built once before the run, in a graph of its own, and held to the rules that towers need.

It knows the network as a function alone: no tower, no update mode and no images.
"""
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

_SCOPE = 'rehearsal'


def rehearse(inference: Callable, batch_size: int, sizes: Sequence[int], dtype: tf.DType) -> str | None:
    """Builds a network as training does, then as evaluation does; returns which rule it broke and the remedy, or None.

    Args:
      inference: function (images, devices, training) -> logits.
      batch_size: images in a training batch.
      sizes: their heights and widths in the course of a run; evaluation has the last.
      dtype: of training images.

    Raises:
      UsageError: as `inference` does.
    """
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        side = sizes[0] if len(sizes) == 1 else None
        with tf.name_scope(_SCOPE), _variables():
            logits = inference(tf.placeholder(dtype, [batch_size, side, side, 3]), [''], True)
        broken = _of_variables() or _of_collections() or _of_gradients(logits)
        if broken:
            return broken
        known = {variable.op.name for variable in tf.global_variables()}
        with _variables(reuse=tf.AUTO_REUSE):
            inference(tf.placeholder(tf.float32, [None, sizes[-1], sizes[-1], 3]), [''], False)
        new = [variable.op.name for variable in tf.global_variables() if variable.op.name not in known]
        if new:
            return (f'it makes the variable {new[0]} only where `training` is false, so it is never trained; make it '
                    'in both cases')
    return None


def _variables(reuse=False):
    # As towers have it: at its end the numbers of scopes that are named by default begin anew.
    return tf.variable_scope(tf.get_variable_scope(), reuse=reuse, auxiliary_name_scope=False)


def _of_variables():
    # Tower scopes are name scopes, which `get_variable` ignores and all other variables carry.
    outside = [variable.op.name.removeprefix(_SCOPE + '/')
               for variable in tf.global_variables() + tf.local_variables() + tf.trainable_variables()
               if variable.op.name.startswith(_SCOPE + '/')]
    if outside:
        return (f'the variable {outside[0]} was not made with tf.get_variable, so each tower would have its own; use '
                'tf.get_variable')
    odd = [variable.op.name for variable in tf.trainable_variables() if variable.dtype.base_dtype != tf.float32]
    if odd:
        return f'the variable {odd[0]} is not float32, in which a run keeps its variables; cast its value instead'
    return None


def _of_collections():
    for collection, remedy in ((tf.GraphKeys.REGULARIZATION_LOSSES, 'add losses to the collection tf.GraphKeys.LOSSES, '
                                'in every tower'),
                               (tf.GraphKeys.UPDATE_OPS, 'use cifar10.networks.normalisation.batch_normalisation')):
        if tf.get_collection(collection):
            return f'it fills the collection {collection}, which towers do not share; {remedy}'
    for loss in tf.get_collection(tf.GraphKeys.LOSSES):
        if not isinstance(loss, tf.Tensor) or loss.dtype != tf.float32 or loss.shape.rank != 0:
            return f'it adds {described(loss)} to the collection tf.GraphKeys.LOSSES; add float32 scalars'
    for layer in tf.get_collection(tf.GraphKeys.ACTIVATIONS):
        if not isinstance(layer, tf.Tensor) or not layer.dtype.is_floating or not layer.shape.rank:
            return (f'it adds {described(layer)} to the collection tf.GraphKeys.ACTIVATIONS; add float tensors '
                    '[images, ...]')
    return None


def _of_gradients(logits):
    variables = tf.trainable_variables()
    if all(gradient is None for gradient in tf.gradients(logits, variables)):
        return ('its logits depend on no variable that can be trained; make some with tf.get_variable, and use them '
                'where gradients pass')
    return None


def described(found: Any) -> str:
    """Returns what a network returned or collected, for a message."""
    if not isinstance(found, tf.Tensor):
        return f'{type(found).__name__} {found!r}' if isinstance(found, (int, float, str)) else type(found).__name__
    shape = found.shape.as_list() if found.shape.rank is not None else 'of unknown shape'
    return f'a tensor {found.dtype.name} {shape}'
