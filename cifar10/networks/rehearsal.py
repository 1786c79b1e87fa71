"""A user's own network, built before the run as training and as evaluation build it, and held to the rules of towers.

It knows the network as a function alone: no tower, no update mode and no images.
"""
import collections
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.networks import MOVING_STATISTICS, MovingStatistic

_SCOPE = 'rehearsed_tower'
_STATISTICS = 'cifar10.networks.add_moving_statistic'
_WRITES = re.compile(r'Assign\w*VariableOp|Resource(?!Gather)\w+')  # types of operations


def rehearse(inference: Callable, batch_size: int, sizes: Sequence[int], dtype: tf.DType, seed: int) -> str | None:
    """Builds a network in two graphs that are not run; returns which rule it broke, with the remedy, or None.

    Args:
      inference: function (images, devices, training) -> logits.
      batch_size: images in a training batch.
      sizes: their heights and widths in the course of a run; evaluation has the last.
      dtype: of training images.
      seed: of the training graph; evaluation has none.

    Raises:
      UsageError: as `inference` does.
    """
    side = sizes[0] if len(sizes) == 1 else None
    with tf.Graph().as_default():
        tf.set_random_seed(seed)
        tf.train.get_or_create_global_step()
        scope, logits = _tower(inference, 0, dtype, [batch_size, side, side, 3])
        broken = (_of_variables() or _of_losses() or _of_collections() or _of_scopes(scope) or _of_gradients(logits)
                  or _of_writes() or _of_towers(scope, _tower(inference, 1, dtype, [batch_size, side, side, 3])[0]))
        trained = _variables()
    if broken:
        return broken
    with tf.Graph().as_default():
        with tf.name_scope(_SCOPE):
            inference(tf.placeholder(tf.float32, [None, sizes[-1], sizes[-1], 3]), [''], False)
        return _of_variables() or _of_writes() or _of_differences(trained, _variables())


def _tower(inference, k, dtype, shape):
    """Builds a network as in a tower: the second one gets the variables of the first. Returns (name scope, logits)."""
    name = f'{_SCOPE}_{k}' if k else _SCOPE
    with tf.name_scope(name) as scope, tf.variable_scope(tf.get_variable_scope(), reuse=k > 0,
                                                         auxiliary_name_scope=False):
        return scope, inference(tf.placeholder(dtype, shape), [''], True)


def _variables():
    """Returns {name of a variable: what evaluation and training must agree on}."""
    return {variable.op.name: f'{variable.shape.as_list()}, {variable.dtype.base_dtype.name}, '
                              f'{"" if variable.trainable else "not "}trainable' for variable in tf.global_variables()}


def _of_variables():
    for variable in tf.global_variables() + tf.local_variables() + tf.trainable_variables():
        name = variable.op.name
        # Tower scopes are name scopes, which `get_variable` ignores and all other variables carry.
        if name.startswith(_SCOPE + '/'):
            return (f'the variable {name.removeprefix(_SCOPE + "/")} was not made with tf.get_variable, so each tower '
                    'would have its own; use tf.get_variable')
        if variable.op.type != 'VarHandleOp':
            return f'the variable {name} is not a resource variable; leave use_resource=False out'
        if re.search(r'/part_\d+$', name):
            return f'the variable {name} is a part of a partitioned one; leave the partitioner out'
    for variable in tf.local_variables():
        return (f'the variable {variable.op.name} is a local one, which no checkpoint has; leave it out of the '
                'collection tf.GraphKeys.LOCAL_VARIABLES')
    saved = {variable.op.name for variable in tf.global_variables()}
    for operation in tf.get_default_graph().get_operations():
        if operation.type == 'VarHandleOp' and operation.name not in saved:
            return (f'the variable {operation.name} is not in the collection tf.GraphKeys.GLOBAL_VARIABLES, so nothing '
                    'initialises or saves it; leave collections= out')
    for variable in tf.trainable_variables():
        if variable.dtype.base_dtype != tf.float32:
            return (f'the variable {variable.op.name} is not float32, in which a run keeps what it trains; cast its '
                    'value, or make it with trainable=False')
    return None


def _of_losses():
    for loss in tf.get_collection(tf.GraphKeys.LOSSES):
        if not isinstance(loss, tf.Tensor) or loss.dtype != tf.float32 or loss.shape.rank != 0:
            return f'it adds {described(loss)} to the collection tf.GraphKeys.LOSSES; add float32 scalars'
    return None


def _of_collections():
    for collection, remedy in ((tf.GraphKeys.REGULARIZATION_LOSSES, 'add losses to the collection tf.GraphKeys.LOSSES, '
                                'in every tower'),
                               (tf.GraphKeys.UPDATE_OPS, 'use cifar10.networks.layers.batch_normalisation')):
        if tf.get_collection(collection):
            return f'it fills the collection {collection}, which towers do not share; {remedy}'
    for layer in tf.get_collection(tf.GraphKeys.ACTIVATIONS):
        if not isinstance(layer, tf.Tensor) or not layer.dtype.is_floating or not layer.shape.rank:
            return (f'it adds {described(layer)} to the collection tf.GraphKeys.ACTIVATIONS; add float tensors '
                    '[images, ...]')
    for each in tf.get_collection(MOVING_STATISTICS):
        if (not isinstance(each, MovingStatistic) or each.variable.trainable or each.value.dtype != tf.float32
                or each.value.shape != each.variable.shape or not 0 <= each.keep <= 1):
            return (f'it adds to the collection {MOVING_STATISTICS} what is not a MovingStatistic, with a variable '
                    'that is not trainable, a float32 value of its shape, and a fraction to keep from 0 to 1; use '
                    f'{_STATISTICS}')
    return None


def _of_scopes(scope):
    # A tower knows what it has added by its name scope.
    for collection in (tf.GraphKeys.LOSSES, tf.GraphKeys.ACTIVATIONS, MOVING_STATISTICS):
        for each in tf.get_collection(collection):
            if not each.name.startswith(scope):
                return (f'it adds {each.name.split(":")[0]}, made in an absolute name scope, to the collection '
                        f'{collection}, where its tower does not find it; leave out tf.name_scope(None) and scopes '
                        'that end with /')
    return None


def _of_towers(first, second):
    for collection in (tf.GraphKeys.LOSSES, MOVING_STATISTICS):
        one, other = (collections.Counter(each.name.removeprefix(scope).split(':')[0]
                                          for each in tf.get_collection(collection, scope))
                      for scope in (first, second))
        for name in (one - other) + (other - one):
            return (f'it adds {name} to the collection {collection} in one tower and not in the other; add the same '
                    'each time it is called, whether variables are reused or not')
    return None


def _of_writes():
    graph = tf.get_default_graph()
    initialisers = {variable.initializer.name for variable in tf.global_variables()}
    operations = [node for node in graph.as_graph_def().node if node.name not in initialisers]
    for function in graph.as_graph_def().library.function:  # the branches of a tf.cond, the body of a tf.while_loop
        operations += function.node_def
    for operation in operations:
        if _WRITES.fullmatch(operation.op):
            return (f'its operation {operation.name.removeprefix(_SCOPE + "/")} changes a variable, which each update '
                    f'mode would run another number of times; leave it out, or for moving statistics use {_STATISTICS}')
    return None


def _of_gradients(logits):
    variables = tf.trainable_variables()
    if all(gradient is None for gradient in tf.gradients(logits, variables)):
        return ('its logits depend on no variable that can be trained; make some with tf.get_variable, and use them '
                'where gradients pass')
    tf.gradients(tf.get_collection(tf.GraphKeys.LOSSES) + [logits], variables)  # which raises where there are none
    return None


def _of_differences(trained, evaluated):
    for name, found in evaluated.items():
        if name not in trained:
            return f'it makes the variable {name} only where `training` is false, so it is not trained; make it always'
        if found != trained[name]:
            return (f'the variable {name} is {trained[name]} in training, but {found} in evaluation; make it alike in '
                    'both')
    return None


def described(found: Any) -> str:
    """Returns what a network returned or collected, for a message."""
    if not isinstance(found, tf.Tensor):
        return f'{type(found).__name__} {found!r}' if isinstance(found, (int, float, str)) else type(found).__name__
    shape = found.shape.as_list() if found.shape.rank is not None else 'of unknown shape'
    return f'a tensor {found.dtype.name} {shape}'
