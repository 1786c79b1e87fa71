"""Packing: small tensors travel as one, because the delay of a transfer between devices counts more than its bytes.
"""
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.parallel.towers import gradients_by_variable

_LARGE = 1 << 18  # elements of a tensor that travels alone, because packing would copy it


def pack(tensors: Sequence[tf.Tensor]) -> tuple[list, Callable[[list], list]]:
    """Joins all small tensors to one.

    Args:
      tensors: tensors of one type and of known shapes.

    Returns:
      (a list of tensors: the large ones, then the small ones as one; the function that takes such a
      list back to tensors of the order and the shapes of `tensors`).
    """
    sizes = [tensor.shape.num_elements() for tensor in tensors]
    large = [i for i in range(len(tensors)) if sizes[i] >= _LARGE]
    small = [i for i in range(len(tensors)) if sizes[i] < _LARGE]
    packed = [tensors[i] for i in large]
    if small:
        packed.append(tf.concat([tf.reshape(tensors[i], [-1]) for i in small], 0))

    def unpack(values):
        found = dict(zip(large, values))
        if small:
            parts = tf.split(values[-1], [sizes[i] for i in small])
            found.update((i, tf.reshape(part, tensors[i].shape)) for i, part in zip(small, parts))
        return [found[i] for i in range(len(tensors))]
    return packed, unpack


class Packed(NamedTuple):
    """Stands in a (gradient, variable) pair for the variables of a packed gradient."""
    name: str


def pack_gradients(tower_grads: Sequence[Sequence[tuple]],
                   devices: Sequence[str]) -> tuple[list, Callable[[list], list]]:
    """Joins each tower's small gradients on the tower's device, for `average_gradients` to average.

    Args:
      tower_grads: K towers x N (gradient, variable) pairs, as `average_gradients` takes them.
      devices: the K towers' device names.

    Returns:
      (K towers x M (gradient, variable or Packed) pairs; the function that takes their M averages back to
      N (gradient, variable) pairs). Sparse gradients travel as they are.
    """
    matched = gradients_by_variable(tower_grads)
    dense = [i for i, (gradients, _) in enumerate(matched)
             if gradients and not any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)]
    others = [i for i in range(len(matched)) if i not in dense]
    packed_grads = []
    for k, device in enumerate(devices):
        with tf.device(device), tf.name_scope(f'pack_{k}'):
            packed, unpack = pack([matched[i][0][k] for i in dense])
        packed_grads.append([*[(tensor, Packed(f'packed_{j}')) for j, tensor in enumerate(packed)],
                             *[tower_grads[k][i] for i in others]])

    def unpack_averages(averages):
        averages = [average for average, _ in averages]
        count = len(averages) - len(others)
        found = dict(zip(dense + others, unpack(averages[:count]) + averages[count:]))
        return [(found[i], variable) for i, (_, variable) in enumerate(matched)]
    return packed_grads, unpack_averages
