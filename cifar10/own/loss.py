"""A user's own loss: a function in a Python file that returns the loss of each example.

    def loss(logits, labels):  # float32 [n, classes], int32 [n] or what an augmentation of your own makes of it
        ...
        return losses  # [n]
"""
import functools
from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import Line
from cifar10.base.errors import UsageError
from cifar10.base.graphs import cpu_session, seeded_graph, with_inputs
from cifar10.model import NUM_CLASSES
from cifar10.own import code
from cifar10.own.code import BrokenRule
from cifar10.own.network import built, traced_once

_FLAG = 'loss'
# The examples that `check` computes the losses of. The halves differ in what labels they have, and how often.
_LABELS = np.array([0, 1, 2, 3, 0, 0, 0, 4])
_EXAMPLES = len(_LABELS)
_FIRST, _SECOND = [0, 1, 2, 3], [4, 5, 6, 7]
_TRIALS = 2
_ROUNDING = 1e-3  # of losses, relative to the largest


def loss(name: str) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Imports the function that 'FILE.py:FUNCTION' names; returns it, with what it returns as float32."""
    return functools.partial(_losses, name, code.function(_FLAG, name, 'logits, labels', each_time=True))


def _losses(name, function, logits, labels):
    def check(losses):
        if not (isinstance(losses, tf.Tensor) and losses.dtype.is_floating and losses.shape.rank == 1
                and losses.shape.is_compatible_with(labels.shape[:1])):
            found = f'{losses.dtype.name} {losses.shape}' if isinstance(losses, tf.Tensor) else type(losses).__name__
            raise BrokenRule(f'it returns {found}; return the loss of each example, float [{labels.shape[0]}], without '
                             'a mean or a sum over them')
        # A function of tf.losses has added what it has returned.
        collected, needed = tf.get_collection_ref(tf.GraphKeys.LOSSES), with_inputs([losses.op])
        collected[:] = [entry for entry in collected if entry.op not in needed]

    with code.usage_errors(_FLAG, name):
        inputs = dict(logits=logits, labels=labels)
        traced = traced_once(function, inputs, True, check, code.traced(name), differentiable=['logits'])
        return built(traced, inputs)[0]


def check(name: str, is_augmented: bool = False) -> list[str]:
    """Raises a UsageError if a loss breaks a rule; returns warnings. It is built once, and tried on random logits.

    Args:
      is_augmented: whether the labels may be fractions of classes, which an augmentation of the user's own has made.
    """
    try:
        return _tried(name, lambda labels: labels)
    except UsageError:
        if not is_augmented:
            raise
        return _tried(name, lambda labels: tf.one_hot(labels, NUM_CLASSES))


def _tried(name, labels_of):
    """As `check`, with what `labels_of` makes of labels."""
    with code.usage_errors(_FLAG, name), seeded_graph() as graph:
        logits = tf.placeholder(tf.float32, [_EXAMPLES, NUM_CLASSES])
        labels = tf.placeholder(tf.int32, [_EXAMPLES])
        losses = loss(name)(logits, labels_of(labels))
        gradient = tf.gradients(losses, logits)[0]
        if gradient is None:
            raise BrokenRule('its losses do not depend on the logits, so nothing would be learnt; use the logits')
        initialise = tf.global_variables_initializer()

        def compute(seed, examples):
            given = np.random.default_rng(seed).standard_normal(logits.shape, np.float32)
            given[_SECOND] *= 4  # so that their losses are larger
            # In a session of its own, random operations draw the same numbers again.
            with cpu_session(graph) as session:
                session.run(initialise)
                return session.run([losses, gradient], {logits: given[examples], labels: _LABELS[examples]})
        try:
            is_relative = any(_depends_on_others(functools.partial(compute, seed)) for seed in range(_TRIALS))
        except tf.errors.OpError:  # an operation for GPUs only, or an error that the first step will report
            return []
    if not is_relative:
        return []
    return [Line('warning', f'--{_FLAG}={name}: the loss of an example depends on the other examples of its batch, so '
                            'another number of towers trains another network')]


def _depends_on_others(compute):
    """Returns whether half of the examples have other losses or gradients beside themselves than beside the others."""
    whole, first, second = map(compute, (_FIRST + _SECOND, 2 * _FIRST, 2 * _SECOND))
    for found, of_first, of_second in zip(whole, first, second):
        expected = np.concatenate([of_first[_FIRST], of_second[_SECOND]])
        if np.abs(found - expected).max() > _ROUNDING * np.abs(found).max():
            return True
    return False
