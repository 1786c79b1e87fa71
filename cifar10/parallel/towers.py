"""Towers: the same computation on every device, over shared variables, and the mean of their gradients."""
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow.compat.v1 as tf
from six.moves import range, zip


def shared_variables(k: int) -> AbstractContextManager:
    """Context in which tower 0 creates variables, and every later tower gets the same variables by name."""
    # Reuse ends with the context. AUTO_REUSE would silently create a variable with a misspelt name.
    return tf.variable_scope(tf.get_variable_scope(), reuse=k > 0, auxiliary_name_scope=False)


def build_towers(device_names: Sequence[str], tower_fn: Callable[[int, str], Any],
                 variables: Callable[[int], AbstractContextManager] = shared_variables) -> list:
    """Builds the same computation on each device, each in its own name scope.

    Args:
      device_names: the K towers' devices.
      tower_fn: function (k, scope) -> anything; builds tower k, with variables from `tf.get_variable`.
        `scope` is the tower's name scope, such as 'tower_0/'.
      variables: function k -> the context in which tower k gets its variables.

    Returns:
      A list of the K values that `tower_fn` returned.
    """
    towers = []
    for k in range(len(device_names)):
        with tf.device(device_names[k]), tf.name_scope(f'tower_{k}') as scope, variables(k):
            towers.append(tower_fn(k, scope))
    return towers


def tower_loss(scope: str, network: Callable[[], Any]) -> tuple[tf.Tensor, Any]:
    """Builds one tower's loss: the sum of its network's losses in the collection LOSSES.

    Args:
      scope: the tower's name scope, which selects its losses.
      network: function without arguments that builds the network on the tower's batch.

    Returns:
      (total loss, float32 scalar; the result of `network`).

    Raises:
      ValueError: the network added no loss.
    """
    outputs = network()
    losses = tf.get_collection(tf.GraphKeys.LOSSES, scope)
    if not losses:
        raise ValueError(f'the network of {scope} added no loss; add its loss to the collection LOSSES')
    return tf.add_n(losses, name='total_loss'), outputs


def collected_losses(scope: str = '') -> dict[str, tf.Tensor]:
    """Returns a tower's losses in the collection LOSSES, by their names in the tower."""
    by_name = {}
    for loss in tf.get_collection(tf.GraphKeys.LOSSES, scope or None):
        name = loss.op.name.removeprefix(scope)
        while name in by_name:  # a loss that was added twice, or a second output of the same operation
            name += '_'
        by_name[name] = loss
    return by_name


def dense(pairs: Sequence[tuple]) -> list[tuple]:
    """Converts sparse gradients (`tf.IndexedSlices`) in (gradient, variable) pairs to dense gradients.

    Embeddings have sparse gradients. Optimizers treat them differently: momentum, for example, updates only the rows
    that a step used.
    """
    return [(tf.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])
             if isinstance(gradient, tf.IndexedSlices) else gradient, variable) for gradient, variable in pairs]


def average_gradients(tower_grads: Iterable[Iterable[tuple]]) -> list[tuple]:
    """Averages each variable's gradients over the towers.

    Args:
      tower_grads: K towers x N (gradient, variable) pairs, as `compute_gradients` or `zip` returns them for one
        tower; every tower has the same variables in the same order.

    Returns:
      N (gradient, variable) pairs: the means over the K towers. The gradient of a variable that no tower
      uses stays None. The mean of sparse gradients (`tf.IndexedSlices`) is dense; duplicate rows are added.

    Raises:
      ValueError: there are no towers, the towers' variables differ, or only some towers use a variable.
    """
    return [(mean_gradient(gradients), variable) for gradients, variable in gradients_by_variable(tower_grads)]


def gradients_by_variable(tower_grads: Iterable[Iterable[tuple]]) -> list[tuple]:
    """Transposes the towers' gradients, after checking that they match.

    Args:
      tower_grads: K towers x N (gradient, variable) pairs, as for `average_gradients`.

    Returns:
      N (gradients, variable) pairs: the K towers' gradients of a variable, or None if no tower uses it.

    Raises:
      ValueError: as in `average_gradients`.
    """
    tower_grads = [list(pairs) for pairs in tower_grads]
    if not tower_grads:
        raise ValueError('there are no towers to average over')
    for k, pairs in enumerate(tower_grads):
        if [v.name for _, v in pairs] != [v.name for _, v in tower_grads[0]]:
            raise ValueError(f'tower {k} does not have the variables of tower 0')
    transposed = []
    for pairs in zip(*tower_grads):
        gradients = [gradient for gradient, _ in pairs]
        variable = pairs[0][1]
        missing = [k for k, gradient in enumerate(gradients) if gradient is None]
        if missing and len(missing) < len(gradients):
            raise ValueError(f'tower {missing[0]} has no gradient for {variable.op.name}, which other towers use')
        transposed.append((None if missing else gradients, variable))
    return transposed


def mean_gradient(gradients: Sequence | None) -> tf.Tensor | None:
    """Returns the mean of one variable's K gradients, tensors or `tf.IndexedSlices`; None for None."""
    if gradients is None:
        return None
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]  # sparse ones become dense
    if len(gradients) == 1:
        return gradients[0]  # without a copy
    return tf.reduce_mean(tf.stack(gradients, 0), 0)
