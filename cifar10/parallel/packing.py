"""Packing: small tensors travel between devices as one, because a transfer costs more in delay than in bytes."""
from collections.abc import Callable, Iterable, Sequence

import tensorflow.compat.v1 as tf

from cifar10.parallel.towers import dense, gradients_by_variable, mean_gradient

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
        unpacked = [None] * len(tensors)
        for numbers, packet in zip(contents, packets):
            shapes = [tensors[i].shape for i in numbers]
            parts = [packet] if len(shapes) == 1 else tf.split(packet, [shape.num_elements() for shape in shapes])
            for i, part, shape in zip(numbers, parts, shapes):
                unpacked[i] = tf.reshape(part, shape)
        return unpacked
    return [_join([tensors[i] for i in numbers]) for numbers in contents], unpack


def _join(tensors):
    """Returns several tensors as one vector; a single one as it is."""
    return tensors[0] if len(tensors) == 1 else tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def average_packed(tower_grads: Iterable[Iterable[tuple]]) -> list[tuple]:
    """Averages each variable's gradients over the towers, as `average_gradients` does, but small ones travel together.

    Args:
      tower_grads: K towers x N (gradient, variable) pairs, as `average_gradients` takes them; a tower that has several
        devices has the same gradients on them as the other towers.
    """
    matched = gradients_by_variable(tower_grads)
    means = {}  # variable's name -> the mean of its gradients
    for device in dict.fromkeys(gradients[0].device for gradients, _ in matched if gradients):  # of tower 0
        here = [pair for pair in matched if pair[0] and pair[0][0].device == device]
        packed = []  # K towers x packets
        for k in range(len(here[0][0])):
            pairs = [(gradients[k], variable) for gradients, variable in here]
            with tf.device(pairs[0][0].device), tf.name_scope(f'pack_{k}'):
                packets, unpack = pack([gradient for gradient, _ in dense(pairs)])
            packed.append(packets)
        averaged = unpack([mean_gradient(packets) for packets in zip(*packed)])
        means.update((variable.name, mean) for (_, variable), mean in zip(here, averaged))
    return [(means.get(variable.name), variable) for _, variable in matched]
