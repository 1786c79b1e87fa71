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

from cifar10.base.cpu_session import cpu_session
from cifar10.base.errors import UsageError
from cifar10.base.graphs import seeded_graph
from cifar10.base.own import BrokenRule
from cifar10.base.own_files import place_of
from cifar10.model.network_draws import at_position
from cifar10.model.parts import divided, with_inputs
from cifar10.parallel.copies import Copies
from cifar10.parallel.towers import build_towers, dense, shared_variables

SCOPE = 'rehearsed'  # the name scope of what the network builds
FED = 'fed_in_rehearsal'  # begins the names of the placeholders that are fed
_IN_COPIES = 'where each device has a copy of the variables, their names begin with replica_1/ in the second call'
_PIXELS = 2 ** 16  # in the batch of a tower at most, so that a rehearsal takes a second
_NOISE = 0.02  # standard deviation; without noise, many gradients are 0 where the last layer begins with zeros
_TOLERANCE, _ROUGH_TOLERANCE = 1e-3, 0.1  # of a gradient, relative to its largest element, in float32 and otherwise


class Tower(NamedTuple):
    """A network that is built for training, in a tower.

    Attributes:
      scope: its name scope.
      parts: the number of parts that the network has.
      images, first: what it is fed: a batch, and the position of its first example.
      logits: what the network returned.
      gradients: (gradient, variable) pairs of the sum of its losses and of a cross entropy.
      operations: what these losses need, the names of operations by what they are: (type, shapes, hash of a constant).
    """
    scope: str
    parts: int
    images: tf.Tensor
    first: tf.Tensor
    logits: tf.Tensor
    gradients: list
    operations: dict


def batch_size(asked: int, side: int, dtype: tf.DType) -> int:
    """Returns how many images a tower gets in a rehearsal: fewer than in training where these would take long."""
    return min(asked, max(2, _PIXELS // side ** 2) if dtype == tf.float32 else 2)  # CPUs may emulate other types


def build(inference: Callable, count: int, batch_size: int, side: int | None, dtype: tf.DType, seed: int,
          has_copies: bool = False, check: Callable[[Tower], None] = lambda tower: None) -> list[Tower]:
    """Builds towers in the current graph.

    Args:
      inference, dtype, seed, has_copies: as for `rehearsal.rehearse`.
      count: how many towers.
      batch_size: images of each.
      side: height and width of the images; None: unknown.
      check: is called in each tower, once it is built.
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
        built = Tower(scope, division.parts, images, first, logits, [], {})
        check(built)
        labels = tf.zeros([batch_size], tf.int32)
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.add_n([*tf.get_collection(tf.GraphKeys.LOSSES), tf.reduce_mean(cross_entropy)])
        variables = tf.trainable_variables()
        gradients = dense([(gradient, variable) for gradient, variable in zip(tf.gradients(loss, variables), variables)
                           if gradient is not None])
        return built._replace(gradients=gradients, operations=_operations(loss))
    with tf.name_scope(SCOPE):
        return build_towers([''] * count, tower, Copies(count).created if has_copies else shared_variables)


def _operations(loss):
    """Returns what a loss needs, as `Tower.operations` has it."""
    found = collections.defaultdict(list)
    for operation in with_inputs([loss.op]):
        value = operation.get_attr('value').SerializeToString() if operation.type == 'Const' else b''
        shapes = str([tensor.shape for tensor in operation.outputs])
        found[operation.type, shapes, hashlib.sha256(value).digest()].append(operation.name)
    return found


def refuse_another_network(first: Tower, second: Tower) -> None:
    """Raises a BrokenRule if two towers do not consist of the same operations."""
    for one, other in ((second, first), (first, second)):
        for description, names in one.operations.items():
            if len(names) > len(other.operations.get(description, ())):
                raise BrokenRule(f'its second call builds another network than its first: only one of them has the '
                                 f'{description[0]} {relative(names[-1])}{place_of(names[-1])}; build the same in each '
                                 f'call ({_IN_COPIES})')


def compare(inference: Callable, towers: Sequence[Tower], dtype: tf.DType, side: int, seed: int,
            draws: bool) -> list[str]:
    """Computes the gradients of two towers in the current graph, and of one that has the images of both.

    Both towers have the same images, so that statistics of a batch are the same in one tower and in two.

    Args:
      inference, dtype, seed: as for `rehearsal.rehearse`.
      towers: two, as `build` returns them.
      side: height and width of the images.
      draws: whether the network draws random numbers. Then only the two towers are compared, at one position.

    Returns:
      Warnings, as `rehearsal.rehearse` returns them.

    Raises:
      BrokenRule: the towers compute different gradients.
    """
    random, warnings = np.random.default_rng(0), []
    images = random.standard_normal([towers[0].images.shape[0], side, side, 3], np.float32)
    tolerance = _TOLERANCE if dtype == tf.float32 else _ROUGH_TOLERANCE
    with cpu_session(tf.get_default_graph()) as session:
        session.run(tf.global_variables_initializer())
        variables = {variable.op.name: variable for variable in tf.global_variables()}
        for variable in tf.trainable_variables():
            noise = _NOISE * random.standard_normal(variable.shape.as_list(), np.float32)
            _set(session, variable, session.run(variable) + noise)
        values = session.run(variables)
        session.run(tf.local_variables_initializer())  # the copies begin as the primaries are
        (first, again), (second, _) = ([session.run(_gradients(tower), _feed(tower, images)) for _ in range(2)]
                                       for tower in towers)
    if not all(np.isfinite(gradient).all() for gradient in first.values()):
        return []
    for name, gradient in first.items():
        if _difference(second[name], gradient) > tolerance:
            raise BrokenRule(f'its second call computes another gradient of {name} than its first, from the same '
                             'images; build the same in each call')
        if not warnings and gradient.tobytes() != again[name].tobytes():
            warnings.append(f'its gradient of {name} is not the same to the bit when it is computed again, so neither '
                            'are two runs; use --deterministic, if you have not, or other operations')
    if draws:
        return warnings
    with seeded_graph(seed):
        whole, = build(inference, 1, 2 * len(images), towers[0].images.shape[1], dtype, seed)
        with cpu_session(tf.get_default_graph()) as session:
            session.run(tf.global_variables_initializer())
            for variable in tf.global_variables():
                _set(session, variable, values[variable.op.name])
            together = session.run(_gradients(whole), _feed(whole, np.concatenate([images, images])))
    for name, gradient in together.items():
        if _difference((first[name] + second[name]) / 2, gradient) > tolerance:
            return [*warnings, f'its gradient of {name} depends on how images are divided into batches, so another '
                    'number of towers trains another network; make losses means over the images, not sums']
    return warnings


def _gradients(tower):
    """Returns a tower's gradients by the names of its variables, which are the same in all copies."""
    return {re.sub(r'^replica_\d+/', '', variable.op.name): gradient for gradient, variable in tower.gradients}


def _feed(tower, images):
    return {tower.images: images, tower.first: 0}


def _set(session, variable, value):
    session.run(variable.initializer, {variable.initializer.inputs[1]: value})


def _difference(value, other):
    """Returns the largest difference of two arrays, relative to the largest element of the second."""
    return np.abs(value - other).max(initial=0) / (np.abs(other).max(initial=0) or 1)


def relative(name: str) -> str:
    """Returns the name that an operation or a variable has within its tower."""
    return re.sub(rf'\b{SCOPE}/(tower_\d+/)?', '', name)
