"""All-reduce: the mean of the towers' tensors, on each of their devices, with the same bits on any number of devices.

A sum of floats depends on the order in which they are added, and so on which towers share a device and on the ring of
the devices. A sum of integers does not. So each element becomes integers, as multiples of a unit that all towers agree
on; the integers are added; and their sum becomes a float again.

The unit is a power of two. Each element has its own, which follows from the largest absolute value that any tower has
there: with up to 32 towers, that value has 26 bits, two more than a float32. So a small gradient keeps its precision
beside much larger ones; Adam steps equally far for both. The sum of two floats has only one order, so two towers need
no integers.
"""
import functools
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from cifar10.parallel.devices import Devices
from cifar10.parallel.gpus import communication
from cifar10.parallel.packing import pack

_GROUP_KEY = 1  # any number, but the same in all members of a collective
_EXPONENT = 0x7F800000  # the bits of a float32 that hold its exponent
# The unit of a value is 2^-25 of it or more. Smaller values get the unit of the smallest, because their own would be a
# denormal number, which devices may flush to 0.
_SMALLEST = 2.0 ** -100
_MOST_BITS = 26  # more would make the unit of the smallest denormal


def means_over_towers(towers: Sequence[Sequence[tf.Tensor]], devices: Devices) -> list[list[tf.Tensor]]:
    """Averages tensors over all towers, on each group of devices, element by element.

    With up to 512 towers, the error of a mean is at most 2^-20 of the largest absolute value of that element in any
    tower, if that is 2^-100 or more; with each doubling of the towers, it doubles. If a value of any tower is not
    finite, neither is the mean of that element. The tensors of a single tower are their own means, as they are.

    Args:
      towers: for each tower a list of float32 tensors on its device, with the same shapes in all towers.

    Returns:
      For each group of devices a list of the means, on its first device: the same bits on each, and for any number of
      groups.
    """
    if len(towers) == 1:
        return [list(towers[0])]
    num_groups = len(devices.groups)
    # In a graph with several steps, the collectives of each have keys of their own.
    others = sum(each.type == 'CollectiveReduce' for each in tf.get_default_graph().get_operations())
    means = []
    for group, device in enumerate(devices.tower_devices[:num_groups]):
        with tf.device(device), tf.name_scope(f'all_reduce_{group}'):
            member = _Member(num_groups, devices.on_gpus, others)
            # Each packet on its own, so that a large gradient is on its way while the others are still being computed.
            packets_of_towers, (unpack, *_) = zip(*[pack(tensors) for tensors in towers[group::num_groups]])
            means.append(unpack([_mean(packets, len(towers), member) for packets in zip(*packets_of_towers)]))
    return means


def _mean(values, num_towers, member):
    """Averages a tensor over all towers; `values` are those in the towers of the member's group."""
    if num_towers == 2:
        return member.reduce(_sum([value * 0.5 for value in values]), 'Add')  # the sum of the values could overflow
    powers = tf.maximum(member.largest(functools.reduce(tf.maximum, map(_power, values))), _SMALLEST)
    # A value is less than twice its power, so an integer is less than 2^bits, and the sum of all towers less than 2^31.
    bits = min(_MOST_BITS, 31 - (num_towers - 1).bit_length())
    inverses = 2.0 ** (bits - 1) / powers
    # They are truncated: rounded up, the largest float32 in all towers would have a mean above it, which is infinite.
    integers = [tf.cast(value * inverses, tf.int32) for value in values]
    # As uint32, because GPUs would send integers of type int32 to the host and add them there. The bits are the same.
    total = tf.bitcast(_sum([tf.bitcast(each, tf.uint32) for each in integers]), tf.int32)
    units = tf.where_v2(powers < float('inf'), powers * 2.0 ** (1 - bits), float('nan'))
    return tf.cast(member.total(total), tf.float32) / num_towers * units


def _sum(tensors):
    return functools.reduce(tf.add, tensors)


def _power(values):
    """Returns the largest powers of two that are not above the absolute values; infinity where one is not finite."""
    # By the bits of the exponent: a logarithm may be rounded differently on another machine. As uint32, because
    # constants of type int32 would be copied from the host.
    exponents = tf.bitwise.bitwise_and(tf.bitcast(values, tf.uint32), tf.constant(_EXPONENT, tf.uint32))
    return tf.bitcast(exponents, tf.float32)


class _Member:
    """One member of the collectives.

    Each of its collectives waits for the one before it: if two members ran two collectives in different orders, each
    would wait for the other.
    """

    def __init__(self, size, on_gpus, others):
        self._size = size  # how many members there are
        self._others = others  # how many other collectives there are
        self._hint = communication(on_gpus)
        # A bfloat16 has the exponents of a float32 in half its bytes. Between GPUs TensorFlow reduces neither bfloat16
        # nor int32 (base_collective_executor.cc); a float64 holds every int32.
        self._power_type, self._integer_type = (tf.float32, tf.float64) if on_gpus else (tf.bfloat16, tf.int32)
        self._reduced = []

    def largest(self, powers):
        """Returns the largest of all members' float32 powers of two, element by element."""
        return tf.cast(self.reduce(powers, 'Max', self._power_type), tf.float32)

    def total(self, integers):
        """Returns the sum of all members' int32 tensors, whose order does not matter."""
        return self.reduce(integers, 'Add', self._integer_type)

    def reduce(self, tensor, operation, dtype=tf.float32):
        """Returns the result of an operation, 'Add' or 'Max', on the tensors of all members, sent as `dtype`."""
        if self._size == 1:
            return tensor
        tensor = tf.cast(tensor, dtype)
        with tf.control_dependencies(self._reduced[-1:]):
            self._reduced.append(tf.raw_ops.CollectiveReduce(
                input=tensor, group_size=self._size, group_key=_GROUP_KEY,
                instance_key=self._others + len(self._reduced) + 1,
                merge_op=operation, final_op='Id', subdiv_offsets=[0], communication_hint=self._hint))
        return self._reduced[-1]
