"""Packing: small tensors travel between devices as one, because a transfer costs more in delay than in bytes."""
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

_LARGE = 1 << 18  # elements from which a tensor travels alone, because packing would copy it


def pack(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]]:
    """Makes packets of tensors, where they are: one of each large tensor, and one of all small ones of each device.

    The last large one comes first, because the gradients of the last layers are computed first.

    Args:
      tensors: tensors of one type and of known shapes.

    Returns:
      (packets, unpack): the packets; and the function that turns as many tensors of their shapes back into tensors in
      the order and with the shapes of `tensors`.
    """
    large = [i for i, tensor in enumerate(tensors) if tensor.shape.num_elements() >= _LARGE]
    small = {}  # device -> the numbers of its small tensors
    for i, tensor in enumerate(tensors):
        if i not in large:
            small.setdefault(tensor.device, []).append(i)
    contents = [*([i] for i in reversed(large)), *small.values()]  # the numbers of the tensors in each packet

    def unpack(packets):
        unpacked = [None] * len(tensors)
        for numbers, packet in zip(contents, packets):
            shapes = [tensors[i].shape for i in numbers]
            parts = [packet] if len(shapes) == 1 else tf.split(packet, [shape.num_elements() for shape in shapes])
            for i, part, shape in zip(numbers, parts, shapes):
                unpacked[i] = tf.reshape(part, shape)
        return unpacked
    return [_join([tensors[i] for i in numbers]) for numbers in contents], unpack


def _join(tensors):
    with tf.device(tensors[0].device), tf.name_scope('pack'):
        return tensors[0] if len(tensors) == 1 else tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


class Packet(NamedTuple):
    """Takes the place of a variable where `average_gradients` averages packets of gradients.

    Attributes:
      name: the same in each tower that has the same variables.
    """
    name: str


def pack_gradients(tower_grads: Sequence[Sequence[tuple]]) -> tuple[list, Callable[[list], list]]:
    """Prepares the argument of `average_gradients`: the small gradients of each device become one packet.

    Args:
      tower_grads: K towers x N (gradient, variable) pairs; no gradient is sparse.

    Returns:
      (packed, unpack): K towers x M (packet, Packet) pairs; and the function that turns the M means of
      `average_gradients` into the N (mean gradient, variable) pairs. A gradient None stays None.
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
