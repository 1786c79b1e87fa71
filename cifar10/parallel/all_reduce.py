"""All-reduce: the mean of the towers' tensors, on each of their devices, with the same bits on any number of devices.

A sum of floats depends on the order of the terms, and so on the placement of the towers and on the ring of devices. A
sum of integers does not. So each element is converted to integer multiples of a unit that all towers share, the
integers are added, and their sum is converted back to a float.

The unit is a power of two. Each element has its own unit, derived from the largest absolute value of that element in
any tower: with up to 32 towers, that value has 26 bits, two more than a float32. So a small gradient keeps its
precision next to much larger gradients; Adam takes equally large steps for both. The sum of two floats has only one
order, so two towers need no integers.
"""
import functools
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from cifar10.parallel.devices import Devices
from cifar10.parallel.gpus import communication
from cifar10.parallel.packing import pack

_GROUP_KEY = 1  # any number, but the same in all members of a collective
_EXPONENT = 0x7F800000  # the bits of a float32 that hold its exponent
# A value's unit is at least 2^-25 of it. Values below the limit share its unit, because their own unit would be a
# denormal number, which devices may flush to 0.
_SMALLEST = 2.0 ** -100
_MOST_BITS = 26  # more would make the unit of the smallest denormal


def means_over_towers(towers: Sequence[Sequence[tf.Tensor]], devices: Devices) -> list[list[tf.Tensor]]:
    """Averages tensors over all towers, on each group of devices, element by element.

    With up to 512 towers, the error of a mean is at most 2^-20 of the largest absolute value of that element in any
    tower, if that value is at least 2^-100. Each doubling of the towers doubles the error. If a value of any tower is
    not finite, the mean of that element is not finite. The tensors of a single tower are returned unchanged.

    Args:
      towers: for each tower a list of float32 tensors on its device, with the same shapes in all towers.

    Returns:
      For each group of devices a list of the means, on its first device. The bits are equal in all groups and for any
      number of groups.
    """
    if len(towers) == 1:
        return [list(towers[0])]
    num_groups = len(devices.groups)
    # If the graph has several steps, their collectives need different keys.
    existing = sum(op.type == 'CollectiveReduce' for op in tf.get_default_graph().get_operations())
    means = []
    for group, device in enumerate(devices.tower_devices[:num_groups]):
        with tf.device(device), tf.name_scope(f'all_reduce_{group}'):
            member = _Member(num_groups, devices.on_gpus, existing)
            # Packets are reduced separately, so a large gradient travels while later gradients are being computed.
            packets_of_towers, (unpack, *_) = zip(*[pack(tensors) for tensors in towers[group::num_groups]])
            means.append(unpack([_mean(packets, len(towers), member) for packets in zip(*packets_of_towers)]))
    return means


def _mean(values, num_towers, member):
    """Averages a tensor over all towers; `values` has one tensor per tower of the member's group."""
    if num_towers == 2:
        return member.reduce(_sum([value * 0.5 for value in values]), 'Add')  # the sum of the values could overflow
    powers = tf.maximum(member.largest(functools.reduce(tf.maximum, map(_power, values))), _SMALLEST)
    # A value is less than twice its power, so an integer is below 2^bits, and the sum over all towers below 2^31.
    bits = min(_MOST_BITS, 31 - (num_towers - 1).bit_length())
    inverses = 2.0 ** (bits - 1) / powers
    # Integers are truncated: rounding up could turn the mean of the largest float32 values into infinity.
    integers = [tf.cast(value * inverses, tf.int32) for value in values]
    # As uint32, because TensorFlow adds int32 tensors of a GPU on the host. The bits are the same.
    total = tf.bitcast(_sum([tf.bitcast(tensor, tf.uint32) for tensor in integers]), tf.int32)
    units = tf.where_v2(powers < float('inf'), powers * 2.0 ** (1 - bits), float('nan'))
    return tf.cast(member.total(total), tf.float32) / num_towers * units


def _sum(tensors):
    return functools.reduce(tf.add, tensors)


def _power(values):
    """Rounds absolute values down to powers of two; returns infinity for values that are not finite."""
    # From the bits of the exponent, because machines may round logarithms differently. As uint32, because
    # constants of type int32 would be copied from the host.
    exponents = tf.bitwise.bitwise_and(tf.bitcast(values, tf.uint32), tf.constant(_EXPONENT, tf.uint32))
    return tf.bitcast(exponents, tf.float32)


class _Member:
    """One member of the collectives.

    A member runs its collectives in the order of their creation. Different orders would deadlock.
    """

    def __init__(self, size, on_gpus, existing):
        self._size = size  # number of members
        self._existing = existing  # number of collectives that the graph already has
        self._hint = communication(on_gpus)
        # A bfloat16 has the exponent range of a float32 and half its size. On GPUs, TensorFlow reduces neither bfloat16
        # nor int32 (base_collective_executor.cc); a float64 holds every int32.
        self._power_type, self._integer_type = (tf.float32, tf.float64) if on_gpus else (tf.bfloat16, tf.int32)
        self._reduced = []

    def largest(self, powers):
        """Returns the maximum of all members' float32 powers of two, element by element."""
        return tf.cast(self.reduce(powers, 'Max', self._power_type), tf.float32)

    def total(self, integers):
        """Returns the sum of all members' int32 tensors."""
        return self.reduce(integers, 'Add', self._integer_type)

    def reduce(self, tensor, operation, dtype=tf.float32):
        """Reduces the tensors of all members with 'Add' or 'Max'; they travel as `dtype`."""
        if self._size == 1:
            return tensor
        tensor = tf.cast(tensor, dtype)
        with tf.control_dependencies(self._reduced[-1:]):
            self._reduced.append(tf.raw_ops.CollectiveReduce(
                input=tensor, group_size=self._size, group_key=_GROUP_KEY,
                instance_key=self._existing + len(self._reduced) + 1,
                merge_op=operation, final_op='Id', subdiv_offsets=[0], communication_hint=self._hint))
        return self._reduced[-1]
