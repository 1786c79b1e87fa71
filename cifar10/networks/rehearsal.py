"""Builds a user's own network before a run, for training and for evaluation, and checks the rules of towers.

The network is only a function here: no towers, update modes or images are involved, and no graph is run.
"""
import collections
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.networks import MOVING_STATISTICS, MovingStatistic
from cifar10.networks.parts import divided

_SCOPE = 'rehearsed_tower'
_ADD_MOVING_STATISTIC = 'cifar10.networks.add_moving_statistic'
# Types of operations that change a variable.
_WRITES = re.compile(r'Assign\w*VariableOp|Resource(?!Gather)\w+')


def rehearse(inference: Callable, batch_size: int, sizes: Sequence[int], dtype: tf.DType,
             seed: int) -> str | None:
    """Builds a network in a training graph and in an evaluation graph and checks the rules.

    Args:
      inference: function (images, training) -> logits.
      batch_size: images in a training batch.
      sizes: their heights and widths in the course of a run; evaluation uses the last.
      dtype: the type of training images.
      seed: the seed of the training graph; evaluation has none.

    Returns:
      A phrase that names the first broken rule and its remedy, or None.
    """
    side = sizes[0] if len(sizes) == 1 else None
    with tf.Graph().as_default():
        tf.set_random_seed(seed)
        tf.train.get_or_create_global_step()
        with divided() as division:
            scope, logits = _build_tower(inference, 0, dtype, [batch_size, side, side, 3])
        violation = (_variable_rule() or _loss_rule() or _collection_rule() or _scope_rule(scope)
                     or _gradient_rule(logits) or _write_rule())
        if violation:
            return violation
        second_scope, _ = _build_tower(inference, 1, dtype, [batch_size, side, side, 3])
        violation = _tower_rule(scope, second_scope)
        if violation:
            return violation
        training_variables = _variables()
    with tf.Graph().as_default():
        with tf.name_scope(_SCOPE), divided() as evaluated:
            inference(tf.placeholder(tf.float32, [None, sizes[-1], sizes[-1], 3]), False)
        return (_variable_rule() or _write_rule() or _evaluation_rule(training_variables, _variables())
                or _part_rule(division.parts, evaluated.parts))


def _build_tower(inference, k, dtype, shape):
    """Builds a network as tower `k` does: the second tower reuses the variables of the first.

    Args:
      inference: as in `rehearse`.
      k: 0 or 1.
      dtype: the type of the images.
      shape: the shape of the images.

    Returns:
      (name scope of the tower, logits).
    """
    name = f'{_SCOPE}_{k}' if k else _SCOPE
    with tf.name_scope(name) as scope, tf.variable_scope(tf.get_variable_scope(), reuse=k > 0,
                                                         auxiliary_name_scope=False):
        return scope, inference(tf.placeholder(dtype, shape), True)


def _variables():
    """Returns for each variable, by its name, what evaluation and training must agree on, as text."""
    descriptions = {}
    for variable in tf.global_variables():
        trainable = 'trainable' if variable.trainable else 'not trainable'
        dtype = variable.dtype.base_dtype.name
        descriptions[variable.op.name] = f'{variable.shape.as_list()}, {dtype}, {trainable}'
    return descriptions


# Each function below checks one rule. It returns a phrase that says how the network breaks the rule, with the
# remedy, or None if it follows the rule.

def _variable_rule():
    """Variables come from `tf.get_variable`, are saved in checkpoints, and are float32 if they are trained."""
    for variable in tf.global_variables() + tf.local_variables() + tf.trainable_variables():
        name = variable.op.name
        # A tower's scope is a name scope, which `tf.get_variable` ignores and all other variables' names have.
        if name.startswith(_SCOPE + '/'):
            return (f'the variable {name.removeprefix(_SCOPE + "/")} was not made with tf.get_variable, so each '
                    'tower would have its own; use tf.get_variable')
        if variable.op.type != 'VarHandleOp':
            return f'the variable {name} is not a resource variable; leave out use_resource=False'
        if re.search(r'/part_\d+$', name):
            return f'the variable {name} is part of a partitioned variable; leave out the partitioner'
    for variable in tf.local_variables():
        return (f'the variable {variable.op.name} is a local variable, which checkpoints do not contain; do not '
                'add it to the collection tf.GraphKeys.LOCAL_VARIABLES')
    saved = {variable.op.name for variable in tf.global_variables()}
    for operation in tf.get_default_graph().get_operations():
        if operation.type == 'VarHandleOp' and operation.name not in saved:
            return (f'the variable {operation.name} is not in the collection tf.GraphKeys.GLOBAL_VARIABLES, so '
                    'it is neither initialised nor saved; leave out collections=')
    for variable in tf.trainable_variables():
        if variable.dtype.base_dtype != tf.float32:
            return (f'the variable {variable.op.name} is not float32, as all trainable variables must be; make '
                    'it float32 and cast its value, or make it with trainable=False')
    return None


def _loss_rule():
    """Losses are float32 scalars."""
    for loss in tf.get_collection(tf.GraphKeys.LOSSES):
        if not isinstance(loss, tf.Tensor) or loss.dtype != tf.float32 or loss.shape.rank != 0:
            return f'it adds {describe(loss)} to the collection tf.GraphKeys.LOSSES; add float32 scalars'
    return None


def _collection_rule():
    """Only collections that towers understand are used, and their entries are valid."""
    remedies = {
        tf.GraphKeys.REGULARIZATION_LOSSES: 'add losses to the collection tf.GraphKeys.LOSSES, in every tower',
        tf.GraphKeys.UPDATE_OPS: 'use cifar10.networks.layers.batch_normalisation'}
    for collection, remedy in remedies.items():
        if tf.get_collection(collection):
            return f'it adds to the collection {collection}, which towers do not share; {remedy}'
    for layer in tf.get_collection(tf.GraphKeys.ACTIVATIONS):
        if not isinstance(layer, tf.Tensor) or not layer.dtype.is_floating or not layer.shape.rank:
            return (f'it adds {describe(layer)} to the collection tf.GraphKeys.ACTIVATIONS; add float tensors '
                    '[images, ...]')
    for statistic in tf.get_collection(MOVING_STATISTICS):
        if not _is_valid_statistic(statistic):
            return (f'it adds an invalid entry to the collection {MOVING_STATISTICS}; use '
                    f'{_ADD_MOVING_STATISTIC} with a variable that is not trainable, a float32 value of its shape, '
                    'and a fraction to keep from 0 to 1')
    return None


def _is_valid_statistic(entry):
    if not isinstance(entry, MovingStatistic) or entry.variable.trainable:
        return False
    if entry.value.dtype != tf.float32 or entry.value.shape != entry.variable.shape:
        return False
    return 0 <= entry.keep <= 1


def _scope_rule(scope):
    """What a tower adds to a collection is made in its name scope, because the tower finds it by its name."""
    for collection in (tf.GraphKeys.LOSSES, tf.GraphKeys.ACTIVATIONS, MOVING_STATISTICS):
        for entry in tf.get_collection(collection):
            if not entry.name.startswith(scope):
                return (f'it adds {entry.name.split(":")[0]}, made in an absolute name scope, to the collection '
                        f'{collection}, where its tower does not find it; leave out tf.name_scope(None) and '
                        'scopes that end with /')
    return None


def _tower_rule(scope, second_scope):
    """Every tower adds the same losses and moving statistics."""
    for collection in (tf.GraphKeys.LOSSES, MOVING_STATISTICS):
        first = _names_in(collection, scope)
        second = _names_in(collection, second_scope)
        for name in (first - second) + (second - first):
            return (f'it adds {name} to the collection {collection} in one tower and not in the other; add the '
                    'same each time it is called, whether variables are reused or not')
    return None


def _names_in(collection, scope):
    """Counts the names, relative to a name scope, of the entries of a collection in that scope."""
    return collections.Counter(entry.name.removeprefix(scope).split(':')[0]
                               for entry in tf.get_collection(collection, scope))


def _write_rule():
    """No operation changes a variable, apart from its initialiser."""
    graph = tf.get_default_graph()
    initialisers = {variable.initializer.name for variable in tf.global_variables()}
    operations = [node for node in graph.as_graph_def().node if node.name not in initialisers]
    for function in graph.as_graph_def().library.function:  # branches of a tf.cond, the body of a tf.while_loop
        operations += function.node_def
    for operation in operations:
        if _WRITES.fullmatch(operation.op):
            return (f'its operation {operation.name.removeprefix(_SCOPE + "/")} changes a variable, and each '
                    'update mode would run it a different number of times; leave it out, or use '
                    f'{_ADD_MOVING_STATISTIC} for moving statistics')
    return None


def _gradient_rule(logits):
    """The logits depend on a trainable variable, and all losses can be differentiated."""
    variables = tf.trainable_variables()
    if all(gradient is None for gradient in tf.gradients(logits, variables)):
        return ('its logits depend on no trainable variable; make variables with tf.get_variable, and do not stop '
                'their gradients')
    # This raises a LookupError if an operation has no gradient.
    tf.gradients(tf.get_collection(tf.GraphKeys.LOSSES) + [logits], variables)
    return None


def _evaluation_rule(training_variables, evaluation_variables):
    """Evaluation has no other variables than training. The arguments are as `_variables` returns them."""
    for name, description in evaluation_variables.items():
        if name not in training_variables:
            return (f'it makes the variable {name} only where `training` is false, so it is never trained; make '
                    'it in both cases')
        if description != training_variables[name]:
            return (f'the variable {name} is {training_variables[name]} in training, but {description} in '
                    'evaluation; make it the same in both')
    return None


def _part_rule(in_training, in_evaluation):
    """The network has as many parts in evaluation as in training. The arguments are their numbers."""
    if in_training != in_evaluation:
        return (f'its number of parts is {in_training} in training, but {in_evaluation} in evaluation; call next_part '
                'as often in both')
    return None


def describe(value: Any) -> str:
    """Returns a phrase for what a network returned or collected, such as 'a tensor float32 [8, 10]'."""
    if isinstance(value, tf.Tensor):
        shape = 'of unknown shape' if value.shape.rank is None else value.shape.as_list()
        return f'a tensor {value.dtype.name} {shape}'
    if isinstance(value, (int, float, str)):
        return f'{type(value).__name__} {value!r}'
    return type(value).__name__
