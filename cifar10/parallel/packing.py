"""Packing: small tensors travel between devices as one, because a transfer costs more in delay than in bytes."""
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from cifar10.parallel.towers import average_gradients, gradients_by_variable

_LARGE = 1 << 18  # elements from which a tensor travels alone, because packing would copy it


def pack(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]]:
    """Makes packets of tensors: one of each large tensor, then one of all small ones.

    The last large one comes first, because the gradients of the last layers are computed first.

    Args:
      tensors: tensors of one type and of known shapes.

    Returns:
      (packets, unpack): the packets; and the function that turns as many tensors of their shapes back into tensors in
      the order and with the shapes of `tensors`.
    """
    large = [i for i, tensor in enumerate(tensors) if tensor.shape.num_elements() >= _LARGE]
    small = [i for i in range(len(tensors)) if i not in large]
    contents = [[i] for i in reversed(large)] + ([small] if small else [])  # the numbers of the tensors in each packet

    def unpack(packets):
        unpacked = {}
        for numbers, packet in zip(contents, packets):
            unpacked.update(zip(numbers, _separate(packet, [tensors[i].shape for i in numbers])))
        return [unpacked[i] for i in range(len(tensors))]
    return [_join([tensors[i] for i in numbers]) for numbers in contents], unpack


def _join(tensors):
    """Returns several tensors as one vector; a single one as it is."""
    return tensors[0] if len(tensors) == 1 else tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def _separate(packet, shapes):
    """Returns the tensors that `_join` made a packet of."""
    parts = [packet] if len(shapes) == 1 else tf.split(packet, [shape.num_elements() for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes)]


def average_packed(tower_grads: Sequence[Sequence[tuple]]) -> list[tuple]:
    """Averages each variable's gradients over the towers, as `average_gradients` does, but small ones travel together.

    Args:
      tower_grads: K towers x N (gradient, variable) pairs, as `average_gradients` takes them; a tower that has several
        devices has the same gradients on them as the other towers.

    Returns:
      N (gradient, variable) pairs, as `average_gradients`.
    """
    matched = gradients_by_variable(tower_grads)
    by_device = {}  # device of tower 0 -> numbers of the gradients there
    for i, (gradients, _) in enumerate(matched):
        if gradients:
            by_device.setdefault(gradients[0].device, []).append(i)
    means = {}
    for numbers in by_device.values():
        packed_grads = []
        for k in range(len(tower_grads)):
            gradients = [matched[i][0][k] for i in numbers]
            with tf.device(gradients[0].device), tf.name_scope(f'pack_{k}'):
                packets, unpack = pack(gradients)
            # The packets' own variables do not matter, as long as they are the same in all towers.
            packed_grads.append([(packet, matched[i][1]) for i, packet in zip(numbers, packets)])
        means.update(zip(numbers, unpack([mean for mean, _ in average_gradients(packed_grads)])))
    return [(means.get(i), variable) for i, (_, variable) in enumerate(matched)]
