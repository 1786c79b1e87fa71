"""The order and the random numbers of the examples of a batch: pure functions of (seed, position).

A position is an index into the endless stream of shuffled epochs.
"""
from typing import NamedTuple

import tensorflow.compat.v1 as tf

# The operation's default of 4 rounds leaves consecutive epochs correlated (0.6 to 0.75).
_SHUFFLE_ROUNDS = 8
_PHILOX = 1  # tf.random.Algorithm.PHILOX, as an integer for the raw operation
_BLOCK = 2 ** 32  # distance between the blocks of images; networks draw from the counters between them


class Positions(NamedTuple):
    """The positions of a batch in the stream of shuffled epochs.

    Attributes:
      first: int64 scalar, the first of the batch's consecutive positions.
      step: int64 scalar, the first position of the step; a step may have the batches of several towers.
      examples: int64 [n], the indices of the examples at these positions.
      epochs: int64 [n], the epoch of each position.
      in_epoch: number of examples in an epoch.
    """
    first: tf.Tensor
    step: tf.Tensor
    examples: tf.Tensor
    epochs: tf.Tensor
    in_epoch: int


def shuffled(positions: tf.Tensor, count: int, seed: int) -> tf.Tensor:
    """Returns the examples at positions; every epoch has each of `count` examples exactly once.

    Args:
      positions: int64 [n].
      count: number of examples in an epoch.

    Returns:
      int64 [n] in [0, count).
    """
    return permuted(positions % count, count, seed, positions // count)


def permuted(index: tf.Tensor, count: int, seed: int, epochs: tf.Tensor | None = None) -> tf.Tensor:
    """Applies random permutations of `count` numbers to indices.

    Args:
      index: int64 [n] in [0, count).
      epochs: int64 [n], the permutation of each index. None selects an additional permutation, which no epoch uses.

    Returns:
      int64 [n] in [0, count).
    """
    kind = 0
    if epochs is None:
        kind = 1
        epochs = tf.zeros_like(index)
    seeds = tf.stack([tf.fill(tf.shape(index), tf.constant(value, tf.int64)) for value in (seed, kind)] + [epochs], 1)
    return tf.raw_ops.RandomIndexShuffle(
        index=index, seed=tf.cast(seeds, tf.int32), max_index=tf.constant(count - 1, tf.int64), rounds=_SHUFFLE_ROUNDS)


def draws(first_position: tf.Tensor, n: int, seed: int, block: int = 0) -> tf.Tensor:
    """Returns four random numbers for each of `n` positions: float32 [n, 4], uniform in [0, 1).

    A position has the same numbers in every batch.

    Args:
      block: index of a block of four numbers; blocks are independent.
    """
    return philox([n, 4], seed, first_position, block * _BLOCK)


def philox(shape: tf.Tensor, seed: int, count: tf.Tensor, block: int) -> tf.Tensor:
    """Returns random numbers from the counter-based generator Philox, float32, uniform in [0, 1).

    Each value of the counter gives four numbers.

    Args:
      shape: int64 [k], the shape of the result.
      count: int64 scalar, the lower half of the counter's first value.
      block: the upper half of the counter.
    """
    counter = tf.stack([tf.cast(count, tf.uint64), tf.constant(block, tf.uint64)])
    return tf.raw_ops.StatelessRandomUniformV2(
        shape=shape, key=tf.constant([seed], tf.uint64), counter=counter, alg=_PHILOX)
