"""Rehearses user code on made-up batches with the structure of its training batches."""
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError, reason
from cifar10.own import rehearsal
from cifar10.own.batches import rows_of
from cifar10.own.isolated_call import Tower
from cifar10.own.refusals import BrokenRule
from cifar10.own.tracing import trace

_EXAMPLES, _NUMBERS = 8, 2 ** 14 * 3  # the maximum in a tower's batch of a rehearsal
_UNKNOWN = 4  # the size of an unknown dimension


def rehearse(make: Callable[[Any], Tower], batch: Any, seed: int, entry: str,
             real: Sequence[np.ndarray] = ()) -> list[str]:
    """Rehearses a tower in float32, on made-up batches of random numbers; returns notes.

    Args:
      make, batch, seed, entry: as `trace` takes them.
      real: rows to draw from instead of made-up rows, for each part of the batch, as `rows_of` returns them.

    Raises:
      BrokenRule, UsageError: several towers cannot compute the right answer, or the code does not fit its batches.
    """
    rows = [rows_of(each) for each in tf.nest.flatten(batch)]
    if any(each.shape.rank == 0 and each.dtype.is_floating for each in rows):
        return ['its batch has a scalar, which may depend on the number of towers, so the towers were not compared '
                'with one tower']
    sizes = [each.shape[1:].num_elements() or 1 for each in rows if each.shape.rank]
    counts = [each.shape[0] for each in rows if each.shape.rank and each.shape[0]]
    few = min([*counts, _EXAMPLES, max(_NUMBERS // max(sizes, default=1), 2)])

    def called(rows):
        made = [_made_of(leaf, each) for leaf, each in zip(tf.nest.flatten(batch), rows)]
        return make(tf.nest.pack_sequence_as(batch, made))

    def traced(count, seed):
        with tf.Graph().as_default():
            given = [tf.placeholder(each.dtype, [count, *each.shape[1:]] if each.shape.rank else each.shape)
                     for each in rows]
        return trace(called, given, True, seed, entry=entry)
    try:
        return rehearsal.compare(traced, functools.partial(_made_up, real), few, seed)
    except (BrokenRule, UsageError):
        raise
    except Exception as error:  # it needs the number of examples of its batches, for example
        return [f'a second call with {few} examples fails ({reason(error)}), so the towers were not compared with one '
                'tower; use -1 or tf.shape(x)[0] as the number of examples, and keep no tensors between calls']


def _made_of(leaf, rows):
    """Returns a made-up tensor like a tensor of the batch; a sparse or ragged tensor has one value per example."""
    count = rows.shape[0] if rows.shape.rank else 0
    if isinstance(leaf, tf.SparseTensor):
        sizes = [size or _UNKNOWN for size in leaf.shape[1:]] if leaf.shape.rank else [_UNKNOWN]
        indices = np.pad(np.arange(count)[:, None], [(0, 0), (0, len(sizes))])
        return tf.SparseTensor(tf.constant(indices, tf.int64), rows, [count, *sizes])
    for _ in range(leaf.ragged_rank if isinstance(leaf, tf.RaggedTensor) else 0):
        rows = tf.RaggedTensor.from_row_splits(rows, tf.range(count + 1, dtype=leaf.row_splits.dtype))
    return rows


def _made_up(real, random, count, inputs):
    """Returns a batch of real rows if there are any, or made-up rows, where integers and booleans are 0 or 1.

    The halves differ: a later example has larger numbers, or a later row.
    """
    order = (np.arange(count) + 0.5) / count
    drawn = 0.4 * order + 0.6 * random.random(count)
    offsets = np.sort(random.standard_normal(count))
    batch = {}
    for name, tensor in inputs.items():
        shape = [count, *(each or _UNKNOWN for each in tensor.shape[1:])] if tensor.shape.rank else []
        along = [-1] + [1] * (len(shape) - 1)
        if tensor.dtype == tf.string:
            batch[name] = np.full(shape, b'')
        elif tensor.dtype.is_floating:
            values = random.standard_normal(shape) + offsets.reshape(along)
            batch[name] = values.astype(tensor.dtype.as_numpy_dtype)
        else:
            later = 0.4 * order.reshape(along) if shape else 0
            batch[name] = (later + 0.6 * random.random(shape) > 0.5).astype(tensor.dtype.as_numpy_dtype)
    for (name, value), rows in zip(batch.items(), real):
        if value.ndim and len(rows):
            batch[name] = rows[(drawn * len(rows)).astype(int)]
    return batch
