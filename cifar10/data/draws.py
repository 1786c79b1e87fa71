"""What is drawn for the examples of a batch, as pure functions of (seed, position): their order and random numbers.

A position is an index into the endless stream of shuffled epochs.
"""
from typing import NamedTuple

import tensorflow.compat.v1 as tf

# The operation's default of 4 rounds leaves consecutive epochs correlated (0.6 to 0.75).
_SHUFFLE_ROUNDS = 8
_PHILOX = 1  # tf.random.Algorithm.PHILOX, as the raw operation wants it


class Positions(NamedTuple):
    """Where a batch lies in the stream of shuffled epochs.

    Attributes:
      first: int64 scalar, its first position; the others follow.
      step: int64 scalar, the first position of its step, which may have the batches of several towers.
      examples: int64 [n], which examples of the data set these are.
      epochs: int64 [n], in which epoch each is.
      count: int, examples in an epoch.
    """
    first: tf.Tensor
    step: tf.Tensor
    examples: tf.Tensor
    epochs: tf.Tensor
    count: int


def shuffled(positions: tf.Tensor, count: int, seed: int) -> tf.Tensor:
    """Returns the examples at positions: in each epoch, each of `count` examples exactly once.

    Args:
      positions: int64 [n].
      count: examples in an epoch.
      seed: int.

    Returns:
      int64 [n] in [0, count).
    """
    return permuted(positions % count, count, seed, positions // count)


def permuted(index: tf.Tensor, count: int, seed: int, epochs: tf.Tensor | None = None) -> tf.Tensor:
    """Returns where a random permutation of `count` numbers puts each of `index`.

    Args:
      index: int64 [n] in [0, count).
      count: int.
      seed: int.
      epochs: int64 [n], the number of the permutation for each; None: one that is none of these.

    Returns:
      int64 [n] in [0, count).
    """
    kind, epochs = (1, tf.zeros_like(index)) if epochs is None else (0, epochs)
    seeds = tf.stack([tf.fill(tf.shape(index), tf.constant(each, tf.int64)) for each in (seed, kind)] + [epochs], 1)
    return tf.raw_ops.RandomIndexShuffle(
        index=index, seed=tf.cast(seeds, tf.int32), max_index=tf.constant(count - 1, tf.int64), rounds=_SHUFFLE_ROUNDS)


def draws(first_position: tf.Tensor, n: int, seed: int) -> tf.Tensor:
    """Returns float32 [n, 4] uniform in [0, 1): four random numbers of each position.

    One call of the counter-based generator Philox gives 128 bits; the position is its counter, so
    the numbers of a position are the same in whatever batch it lies.
    """
    counter = tf.stack([tf.cast(first_position, tf.uint64), tf.constant(0, tf.uint64)])
    return tf.raw_ops.StatelessRandomUniformV2(
        shape=[n, 4], key=tf.constant([seed], tf.uint64), counter=counter, alg=_PHILOX)
