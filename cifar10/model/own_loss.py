"""A user's own loss: a function in a Python file that returns the loss of each example.

    def loss(logits, labels):  # float32 [n, classes], int32 [n]
        ...
        return losses  # [n]
"""
import functools
from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base import own_code
from cifar10.base.console import Line
from cifar10.base.graphs import cpu_session, seeded_graph, with_inputs
from cifar10.base.own_code import BrokenRule
from cifar10.model import NUM_CLASSES
from cifar10.model.one_device import OneDevice
from cifar10.model.own_network import check_collections, check_operations, check_variables
from cifar10.model.rehearsed_steps import FED

_FLAG = 'loss'
_EXAMPLES = 4  # that `check` computes the losses of
_ROUNDING = 1e-3  # of losses, relative to the largest


def loss(name: str) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Imports the function that 'FILE.py:FUNCTION' names; returns it, with what it returns as float32."""
    return functools.partial(_losses, name, own_code.function(_FLAG, name, 'logits, labels'))


def _losses(name, function, logits, labels):
    with own_code.usage_errors(_FLAG, name):
        call, before = OneDevice(), tf.get_collection(tf.GraphKeys.LOSSES)
        with call.running():
            losses = function(logits, labels)
        if not (isinstance(losses, tf.Tensor) and losses.dtype.is_floating and losses.shape.rank == 1
                and losses.shape.is_compatible_with(labels.shape)):
            found = f'{losses.dtype.name} {losses.shape}' if isinstance(losses, tf.Tensor) else type(losses).__name__
            raise BrokenRule(f'it returns {found}; return the loss of each example, float [{labels.shape[0]}], without '
                             'a mean or a sum over them')
        # A function of tf.losses has added what it has returned.
        collected, needed = tf.get_collection_ref(tf.GraphKeys.LOSSES), with_inputs([losses.op])
        collected[:] = [*before, *(entry for entry in collected[len(before):] if entry.op not in needed)]
        call.collect(losses, training=True)
        return tf.cast(losses, tf.float32)


def check(name: str) -> list[str]:
    """Raises a UsageError if a loss breaks a rule; returns warnings. It is built once, on random logits."""
    with own_code.usage_errors(_FLAG, name), seeded_graph():
        logits = tf.placeholder(tf.float32, [_EXAMPLES, NUM_CLASSES], FED)
        labels = tf.placeholder(tf.int32, [_EXAMPLES], FED)
        with tf.name_scope(_FLAG) as scope:
            losses = loss(name)(logits, labels)
        check_variables()
        check_collections(scope)
        check_operations(losses)
        # The gradient of the first example's loss: with regard to the logits of the others it is 0.
        gradient = tf.gradients(losses[0], logits)[0]
        if gradient is None:
            raise BrokenRule('its losses do not depend on the logits, so nothing would be learnt; use the logits')
        random = np.random.default_rng(0)
        fed = {logits: random.standard_normal(logits.shape, np.float32), labels: np.arange(_EXAMPLES)}
        try:
            with cpu_session(tf.get_default_graph()) as session:
                session.run(tf.global_variables_initializer())
                of_first = session.run(gradient, fed)
        except tf.errors.OpError:  # an operation for GPUs only, or an error that the first step will report
            return []
    if np.abs(of_first[1:]).max() > _ROUNDING * np.abs(of_first).max():
        return [Line('warning', f'--{_FLAG}={name}: the loss of an example depends on the other examples of its '
                                'batch, so another number of towers trains another network')]
    return []
