"""Packing: small tensors travel between devices as one, because a transfer costs more in delay than in bytes."""
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.parallel.towers import gradients_by_variable

_LARGE = 1 << 18  # elements from which a tensor travels alone, because packing would copy it


def pieces(tensors: Sequence[tf.Tensor]) -> list[list[int]]:
    """Returns which tensors travel together, by their numbers: each large one alone, then all small ones.

    The last large one comes first, because the gradients of the last layers are computed first.

    Args:
      tensors: tensors of known shapes.
    """
    numbers = range(len(tensors))
    large = [i for i in reversed(numbers) if tensors[i].shape.num_elements() >= _LARGE]
    small = [i for i in numbers if i not in large]
    return [[i] for i in large] + ([small] if small else [])


def pack(tensors: Sequence[tf.Tensor]) -> tuple[list, Callable[[list], list]]:
    """Concatenates all small tensors into one.

    Args:
      tensors: tensors of one type and of known shapes.

    Returns:
      (packed, unpack): a tensor for each of the `pieces`; and the function that turns such a list back into tensors in
      the order and with the shapes of `tensors`.
    """
    numbers = pieces(tensors)
    packed = [tensors[piece[0]] if len(piece) == 1 else tf.concat([tf.reshape(tensors[i], [-1]) for i in piece], 0)
              for piece in numbers]

    def unpack(packed_values):
        values = {}
        for piece, value in zip(numbers, packed_values):
            shapes = [tensors[i].shape for i in piece]
            parts = tf.split(value, [shape.num_elements() for shape in shapes]) if len(piece) > 1 else [value]
            values.update((i, tf.reshape(part, shape)) for i, part, shape in zip(piece, parts, shapes))
        return [values[i] for i in range(len(tensors))]
    return packed, unpack


class Packed(NamedTuple):
    """Takes the variable's place in a (gradient, variable) pair whose gradient is packed from several."""
    name: str


def pack_gradients(tower_grads: Sequence[Sequence[tuple]]) -> tuple[list, Callable[[list], list]]:
    """Packs each tower's small gradients on their device, before `average_gradients` averages them.

    Args:
      tower_grads: K towers x N (gradient, variable) pairs, as `average_gradients` takes them; a tower that has several
        devices has the same gradients on them as the other towers.

    Returns:
      (packed_grads, unpack): K towers x M (gradient, variable or Packed) pairs; and the function that turns
      their M averages back into N (gradient, variable) pairs.
    """
    matched = gradients_by_variable(tower_grads)
    others = []
    by_device = {}  # device of the first tower -> numbers of the gradients there
    for i, (gradients, _) in enumerate(matched):
        if gradients:
            by_device.setdefault(gradients[0].device, []).append(i)
        else:
            others.append(i)
    packed_grads = [[] for _ in tower_grads]
    devices = []  # for each device (numbers of its gradients, how many tensors they are packed into, unpack)
    for numbers in by_device.values():
        for k, pairs in enumerate(packed_grads):
            gradients = [matched[i][0][k] for i in numbers]
            with tf.device(gradients[0].device), tf.name_scope(f'pack_{k}'):
                packed, unpack = pack(gradients)
            pairs += [(tensor, Packed(f'packed_{len(pairs) + j}')) for j, tensor in enumerate(packed)]
        devices.append((numbers, len(packed), unpack))
    for k, pairs in enumerate(packed_grads):
        pairs += [tower_grads[k][i] for i in others]

    def unpack_averages(packed_averages):
        averages = iter([average for average, _ in packed_averages])
        by_number = {}
        for numbers, count, unpack in devices:
            by_number.update(zip(numbers, unpack([next(averages) for _ in range(count)])))
        by_number.update(zip(others, averages))
        return [(by_number[i], variable) for i, (_, variable) in enumerate(matched)]
    return packed_grads, unpack_averages
