"""Packing: small tensors travel between devices as one tensor, because latency costs more than bandwidth."""
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

_LARGE = 1 << 18  # number of elements; tensors of this size or more travel alone, because packing would copy them


def pack(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]]:
    """Packs tensors on their devices: each large tensor alone, and the small tensors of each device together.

    The last large tensor comes first, because the gradients of the last layers are computed first.

    Args:
      tensors: tensors of one type and of known shapes.

    Returns:
      (packets, unpack): the packets, and a function that takes tensors of the packets' shapes and returns tensors in
      the order and with the shapes of `tensors`.
    """
    large = [i for i, tensor in enumerate(tensors) if tensor.shape.num_elements() >= _LARGE]
    small: dict[str, list[int]] = {}  # device -> the indices of its small tensors
    for i, tensor in enumerate(tensors):
        if i not in large:
            small.setdefault(tensor.device, []).append(i)
    contents = [*([i] for i in reversed(large)), *small.values()]  # the indices of the tensors in each packet

    def unpack(packets):
        unpacked = [None] * len(tensors)
        for indices, packet in zip(contents, packets):
            shapes = [tensors[i].shape for i in indices]
            parts = [packet] if len(shapes) == 1 else tf.split(packet, [shape.num_elements() for shape in shapes])
            for i, part, shape in zip(indices, parts, shapes):
                unpacked[i] = tf.reshape(part, shape)
        return unpacked
    return [_join([tensors[i] for i in indices]) for indices in contents], unpack


def _join(tensors):
    with tf.device(tensors[0].device), tf.name_scope('pack'):
        return tensors[0] if len(tensors) == 1 else tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


class Packet(NamedTuple):
    """Stands for a variable when `average_gradients` averages packets of gradients.

    Attributes:
      name: equal in towers with the same variables.
    """
    name: str


def pack_gradients(tower_grads: Sequence[Sequence[tuple]]) -> tuple[list, Callable[[list], list]]:
    """Packs the towers' gradients for `average_gradients`.

    Args:
      tower_grads: K towers x N (gradient, variable) pairs; no gradient is sparse.

    Returns:
      (packed, unpack): K towers x M (packet, Packet) pairs, and a function that turns the M means of
      `average_gradients` into N (mean gradient, variable) pairs. A gradient of None stays None.
    """
    towers = []
    for pairs in tower_grads:
        used = [pair for pair in pairs if pair[0] is not None]
        packets, unpack = pack([gradient for gradient, _ in used])
        names = ', '.join(variable.name for _, variable in used)
        towers.append([(packet, Packet(f'packet {i} of {names}')) for i, packet in enumerate(packets)])

    def unpack_means(averaged):
        means = iter(unpack([mean for mean, _ in averaged]))
        return [(gradient if gradient is None else next(means), variable) for gradient, variable in tower_grads[0]]
    return towers, unpack_means
