"""Towers of a user's network before a run: they must be the same network, and compute what one tower computes.

They are built as the update mode will build them, and run on random images, with the initial values and some noise.
"""
import collections
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.activity import moved
from cifar10.base.errors import UsageError, reason
from cifar10.base.graphs import MOVING_STATISTICS, cpu_session, seeded_graph, with_inputs
from cifar10.base.own import BrokenRule
from cifar10.base.own_files import place_of
from cifar10.model.network_draws import at_position
from cifar10.model.parts import divided
from cifar10.parallel.replicated import Copies
from cifar10.parallel.towers import build_towers, dense, shared_variables

SCOPE = 'rehearsed'  # the name scope of what the network builds
FED = 'fed_in_rehearsal'  # begins the names of the placeholders that are fed
_IN_COPIES = 'where each device has a copy of the variables, their names begin with replica_1/ in the second call'
# Attributes in which the same operation may differ from call to call.
_BY_CALL = ('seed', 'seed2', 'shared_name', 'container', 'debug_name', 'token')
_PIXELS = 2 ** 16  # in the batch of a tower at most, so that a rehearsal takes a second
_NOISE = 0.02  # standard deviation; without noise, many gradients are 0 where the last layer begins with zeros
_TOLERANCE, _ROUGH_TOLERANCE = 1e-3, 0.1  # of a gradient, relative to its largest element, in float32 and otherwise


class Tower(NamedTuple):
    """A network that is built for training, in a tower.

    Attributes:
      parts: the number of parts that the network has.
      images, first: what it is fed: a batch, and the position of its first example.
      gradients: (gradient, variable) pairs of the sum of its losses and of a cross entropy.
      operations: the names of those that its losses and moving statistics need, by what they are: (type, shapes, hash
        of the attributes).
      normalises: whether it has moving statistics, and so may use those of its batch.
    """
    parts: int
    images: tf.Tensor
    first: tf.Tensor
    gradients: list
    operations: dict
    normalises: bool


def batch_size(asked: int, side: int, dtype: tf.DType) -> int:
    """Returns how many images a tower gets in a rehearsal: fewer than in training where these would take long."""
    return min(asked, max(2, _PIXELS // side ** 2) if dtype == tf.float32 else 2)  # CPUs may emulate other types


def build(inference: Callable, count: int, batch_size: int, side: int | None, dtype: tf.DType, seed: int,
          has_copies: bool = False, check: Callable[[str, tf.Tensor], None] = lambda *_: None) -> list[Tower]:
    """Builds towers in the current graph.

    Args:
      inference, dtype, seed, has_copies: as for `rehearsal.rehearse`.
      count: how many towers.
      batch_size: images of each.
      side: height and width of the images; None: unknown.
      check: is called in the first tower with its name scope and what the network returns.
    """
    fed = [(tf.placeholder(dtype, [batch_size, side, side, 3], FED), tf.placeholder(tf.int64, [], FED))
           for _ in range(count)]

    def tower(k, scope):
        images, first = fed[k]
        try:
            with divided() as division, at_position(seed, first):
                logits = inference(images, True)
        except UsageError as error:
            if k and has_copies:
                raise UsageError(f'{error}; {_IN_COPIES}') from error
            raise
        if k == 0:
            check(scope, logits)
        labels = tf.zeros([batch_size], tf.int32)
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.add_n([*tf.get_collection(tf.GraphKeys.LOSSES), tf.reduce_mean(cross_entropy)])
        variables = tf.trainable_variables()
        gradients = dense([(gradient, variable) for gradient, variable in zip(tf.gradients(loss, variables), variables)
                           if gradient is not None])
        statistics = [statistic.value for statistic in tf.get_collection(MOVING_STATISTICS)]
        return Tower(division.parts, images, first, gradients, _operations([loss, *statistics]), bool(statistics))
    with tf.name_scope(SCOPE):
        return build_towers([''] * count, tower, Copies(count).created if has_copies else shared_variables)


def _operations(tensors):
    """Returns what tensors need, as `Tower.operations` has it."""
    found = collections.defaultdict(list)
    for operation in with_inputs(tensor.op for tensor in tensors):
        attributes = sorted((name, value.SerializeToString()) for name, value in operation.node_def.attr.items()
                            if not (name.startswith('_') or name in _BY_CALL or value.WhichOneof('value') == 'func'))
        shapes = str([tensor.shape for tensor in operation.outputs])
        found[operation.type, shapes, hashlib.sha256(repr(attributes).encode()).digest()].append(operation.name)
    return found


def refuse_another_network(first: Tower, second: Tower) -> None:
    """Raises a BrokenRule if two towers do not consist of the same operations."""
    for one, other in ((second, first), (first, second)):
        for description, names in one.operations.items():
            if len(names) > len(other.operations.get(description, ())):
                raise BrokenRule(f'its second call builds another network than its first: only one of them has the '
                                 f'{description[0]} {relative(names[-1])}{place_of(names[-1])}; build the same in each '
                                 f'call{_hint(second)}')


def _hint(tower):
    names = [variable.op.name for _, variable in tower.gradients]
    return f' ({_IN_COPIES})' if any(name.startswith('replica_') for name in names) else ''


def compare(inference: Callable, towers: Sequence[Tower], dtype: tf.DType, side: int, seed: int,
            draws: bool) -> list[str]:
    """Computes the gradients of two towers in the current graph, and of one tower that has the images of both.

    Where they may normalise by their batch, both have the same images, so that its statistics are those of one tower.

    Args:
      inference, dtype, seed: as for `rehearsal.rehearse`.
      towers: two, as `build` returns them.
      side: height and width of the images.
      draws: whether the network draws numbers for each image; then nothing can be said where it normalises.

    Returns:
      Warnings, as `rehearsal.rehearse` returns them.
    """
    random = np.random.default_rng(0)
    count = int(towers[0].images.shape[0])
    halves = random.standard_normal([2, count, side, side, 3], np.float32)
    if towers[0].normalises:
        halves[1] = halves[0]
    try:
        with cpu_session(tf.get_default_graph()) as session:
            session.run(tf.global_variables_initializer())
            for variable in tf.trainable_variables():
                noise = _NOISE * random.standard_normal(variable.shape.as_list(), np.float32)
                _set(session, variable, session.run(variable) + noise)
            values = session.run({variable.op.name: variable for variable in tf.global_variables()})
            session.run(tf.local_variables_initializer())  # the copies begin as the primaries are
            first, again, second = (_gradients(session, towers[k], halves[k], k * count) for k in (0, 0, 1))
        with seeded_graph(seed):
            whole, = build(inference, 1, 2 * count, towers[0].images.shape[1], dtype, seed)
            with cpu_session(tf.get_default_graph()) as session:
                for variable in tf.global_variables():
                    _set(session, variable, values[variable.op.name])
                together = _gradients(session, whole, np.concatenate(halves), 0)
    except tf.errors.OpError as error:  # an operation for GPUs only, or an error that the first step will report
        return [f'it fails on random images ({reason(error)}), so its towers were not compared with one tower']
    warnings = []
    others = [name for name in first if first[name].tobytes() != again[name].tobytes()]
    if others:
        warnings.append(f'its gradient of {others[0]} has other bits when it is computed again, so a resumed run does '
                        'not end with the same bits; use --deterministic, if you have not, or other operations')
    tolerance = _TOLERANCE if dtype == tf.float32 else _ROUGH_TOLERANCE
    means = {name: (first[name] + second[name]) / 2 for name in first}
    apart = [name for name in together if np.isfinite(means[name]).all() and (
        np.abs(means[name] - together[name]).max(initial=0) > tolerance * np.abs(together[name]).max(initial=0))]
    if apart and not others and not (draws and whole.normalises):
        warnings.append(f'its gradient of {apart[0]} depends on how images are divided into batches, so another number '
                        'of towers trains another network; make losses means over the images, not sums, and use each '
                        'image alone')
    return warnings


def _gradients(session, tower, images, first):
    """Computes a tower's gradients; returns them by the names of its variables, which are the same in all copies."""
    gradients = {re.sub(r'^replica_\d+/', '', variable.op.name): gradient for gradient, variable in tower.gradients}
    moved()
    return session.run(gradients, {tower.images: images, tower.first: first})


def _set(session, variable, value):
    session.run(variable.initializer, {variable.initializer.inputs[1]: value})


def relative(name: str) -> str:
    """Returns the name that an operation or a variable has within its tower."""
    return re.sub(rf'\b{SCOPE}/(tower_\d+/)?', '', name)
