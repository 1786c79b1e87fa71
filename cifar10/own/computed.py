"""Wraps a copied tower for the update modes."""
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.model import network_draws
from cifar10.model.untrained_variables import MovingStatistic
from cifar10.own.copying import Copied, copy, follow
from cifar10.own.follow_up import FollowUp
from cifar10.own.isolated_call import LOSS_SCALE, POSITION, tensors_of
from cifar10.own.tracing import GRADIENT, STATISTIC, Traced
from cifar10.parallel.update import Computed


def copied_tower(traced: Traced, batch: Any, scale: tf.Tensor | None = None,
                 shared: dict | None = None) -> tuple[Computed, Mapping[str, Any]]:
    """Adds a copy of a tower to the current graph, within the scopes of a tower.

    Args:
      batch: a batch in the structure of the traced function's; cast to its types.
      scale: factor for the loss before its gradients are taken, a float32 scalar; None: no scaling.
      shared: a dict that all towers of a step share; None: a single tower.

    Returns:
      (the Computed, the outputs of the copy). Its activations and summaries are added to the graph's collections.
    """
    given = {name: tf.cast(each, traced.dtype_of(name)) for name, each in tensors_of(batch).items()}
    given[LOSS_SCALE] = tf.ones([]) if scale is None else scale
    if traced.uses(POSITION):
        _, given[POSITION] = network_draws.current_place()
    copied = copy(traced, given)
    shared = {} if shared is None else shared
    is_first = shared.setdefault('first', copied) is copied
    for name, activation in copied.outputs.get('activations', {}).items():
        tf.add_to_collection(tf.GraphKeys.ACTIVATIONS, tf.identity(activation, name))
    for summary in copied.outputs.get('summaries', ()) if is_first else ():
        tf.add_to_collection(tf.GraphKeys.SUMMARIES, summary)
    scalars = copied.outputs['scalars']
    if traced.after:
        common = [each.kind == GRADIENT and isinstance(value, tf.Tensor) and value.dtype == tf.float32
                  for each, value in zip(traced.averaged, copied.averaged)]
        pairs = [(value, copied.variables[each.variable]) for each, value, is_common in zip(
            traced.averaged, copied.averaged, common) if is_common]
        others = [value for value, is_common in zip(copied.averaged, common) if not is_common]
        follower = _Follower(traced, traced.after, copied, common, shared)
        return Computed(scalars, pairs, [], others, follower), copied.outputs
    found = list(zip(traced.averaged, copied.averaged))
    gradients = {each.variable: value for each, value in found if each.kind == GRADIENT}
    if scale is not None:
        gradients = {name: value / scale for name, value in gradients.items()}
    pairs = [(gradients.get(each.name), copied.variables[each.name]) for each in traced.variables if each.trained]
    # The identity puts the value into the name scope of the tower.
    statistics = [MovingStatistic(copied.variables[each.variable], tf.identity(value, 'statistic'), each.keep)
                  for each, value in found if each.kind == STATISTIC]
    return Computed(scalars, pairs, statistics), copied.outputs


class _Follower:
    """Applies the means of a model's towers instead of an optimizer; see `update.Computed`."""

    def __init__(self, traced: Traced, after: FollowUp, copied: Copied, common: Sequence[bool], shared: dict):
        self._traced = traced
        self._after = after
        self._copied = copied
        self._common = common  # for each entry of `Traced.averaged` whether it is among the gradients
        self._shared = shared

    def apply(self, gradients: Sequence[tuple], others: Sequence, counter: tf.Variable | None) -> tf.Operation:
        """Adds the follow-up; increments a counter, the global step, in the first update of a step."""
        is_first = 'before' not in self._shared
        if counter is not None:
            with tf.device(counter.device):
                self._shared['before'] = tf.identity(counter.read_value())
        before = self._shared['before']  # all updates of a step get the same
        pairs, rest = iter(gradients), iter(others)
        means = [next(pairs)[0] if is_common else next(rest) for is_common in self._common]
        updated, summaries = follow(self._traced, self._after, self._copied.variables, means, before)
        for summary in summaries if is_first else ():
            tf.add_to_collection(tf.GraphKeys.SUMMARIES, summary)
        if counter is None:
            return updated
        with tf.control_dependencies([updated, before]):
            return tf.group(counter.assign_add(1, read_value=False))

    def variables(self) -> list[tf.Variable]:
        """Returns the variables that an update changes."""
        return [self._copied.variables[name] for name in self._after.changed]
