"""All-reduce: the mean of the towers' tensors, on each of their devices, with the same bits on any number of devices.

A sum of floats depends on the order in which they are added, and so on which towers share a device and on the ring of
the devices. A sum of integers does not. So each tensor becomes integers, as multiples of a unit that all towers agree
on; the integers are added; and their sum becomes floats again.

The unit is a power of two: the largest absolute value that any tower has in that tensor, rounded up to a power of two,
has as many bits as an int32 can hold without an overflow of the sum. With four towers that is 28 bits, four more than
a float32 has. So integers need no more bytes on their way than floats.
"""
import functools
from collections.abc import Collection, Sequence

import tensorflow.compat.v1 as tf

from cifar10.parallel.devices import Devices
from cifar10.parallel.gpus import communication
from cifar10.parallel.packing import pack, pieces

_GROUP_KEY = 1  # any number, but the same in all members of a collective
_EXPONENT = 0x7F800000  # the bits of a float32 that hold its exponent
_SMALLEST = 2.0 ** -90  # the largest values below this are taken for this, so that the inverse of the unit is finite


def means_over_towers(towers: Sequence[Sequence[tf.Tensor]], devices: Devices,
                      precise: Collection[int] = ()) -> list[list[tf.Tensor]]:
    """Averages tensors over all towers, on each group of devices.

    If a value of any tower is not finite, or is the largest float32, the whole mean of that tensor is not a number. The
    tensors of a single tower are their own means, as they are.

    Args:
      towers: for each tower a list of float32 tensors on its device, with the same shapes as those of the others.
      devices: the Devices of the towers.
      precise: numbers of the tensors in which small values keep their precision beside much larger ones: what rounding
        to the unit leaves is averaged too, with a smaller unit. This takes twice the bytes.

    Returns:
      For each group of devices a list of the means, on its first device: the same bits on each, and for any number of
      groups.
    """
    if len(towers) == 1:
        return [list(towers[0])]
    num_groups = len(devices.groups)
    hint = communication(devices.on_gpus)
    means = []
    for group, device in enumerate(devices.tower_devices[:num_groups]):
        with tf.device(device), tf.name_scope(f'all_reduce_{group}'):
            member = _Member(num_groups, hint)
            of_group, rests = _means(towers[group::num_groups], len(towers), member, precise)
            if precise:
                smaller, _ = _means(rests, len(towers), member)
                for i, rest in zip(precise, smaller):
                    of_group[i] += rest
            means.append(of_group)
    return means


def _means(towers, num_towers, member, precise=()):
    """Averages tensors in multiples of the unit.

    Args:
      towers: for each tower of one group a list of tensors.
      num_towers: in all groups.
      member: the group's _Member.
      precise: as `means_over_towers` takes it.

    Returns:
      (the means over all towers, for each tower of the group what rounding leaves of its `precise` tensors).
    """
    means = {}
    rests = [{} for _ in towers]
    # Each piece on its own, so that a large gradient is on its way while the others are still being computed.
    for piece in pieces(towers[0]):
        of_piece = [[tensors[i] for i in piece] for tensors in towers]
        inverses, units = _units([_peak(tensors) for tensors in zip(*of_piece)], num_towers, member)
        integers = []
        for tensors, rest in zip(of_piece, rests):
            (packed,), unpack = pack([tensor * inverse for tensor, inverse in zip(tensors, inverses)])
            rounded = tf.round(packed)
            integers.append(tf.cast(rounded, tf.int32))
            if not set(precise).isdisjoint(piece):
                rest.update((i, tensor - multiple * unit)
                            for i, tensor, multiple, unit in zip(piece, tensors, unpack([rounded]), units))
        total = tf.cast(member.reduce(_sum(integers), 'Add'), tf.float32)
        means.update((i, each * (unit / num_towers)) for i, each, unit in zip(piece, unpack([total]), units))
    return [means[i] for i in range(len(means))], [[rest[i] for i in precise] for rest in rests]


def _units(peaks, num_towers, member):
    """Returns (the inverses of the units, the units) of some tensors; not a number where a value is not finite.

    Args:
      peaks: for each tensor a scalar, the largest absolute value that it has in a group's towers.
      num_towers, member: as for `_means`.
    """
    peaks = member.reduce(tf.stack(peaks), 'Max')
    powers = _power(tf.maximum(peaks, _SMALLEST))
    # A value is less than twice its power, so an integer is at most 2^bits, and the sum of all towers less than 2^31.
    bits = 31 - num_towers.bit_length()
    units = tf.where_v2(peaks < tf.float32.max, powers * 2.0 ** (1 - bits), float('nan'))
    return tf.unstack(2.0 ** (bits - 1) / powers), tf.unstack(units)


def _sum(integers):
    """Returns the sum of int32 tensors."""
    # As uint32, because GPUs would send integers of type int32 to the host and add them there. The bits are the same.
    return tf.bitcast(functools.reduce(tf.add, [tf.bitcast(each, tf.uint32) for each in integers]), tf.int32)


def _peak(tensors):
    """Returns the largest absolute value of some tensors; the largest float32 if one of their values is not finite."""
    # The largest and the smallest value take less time than the largest absolute value, which would be an array first.
    ends = [end for tensor in tensors for end in (tf.reduce_max(tensor), -tf.reduce_min(tensor))]
    peak = tf.reduce_max(tf.stack(ends))
    return tf.where_v2(peak < tf.float32.max, peak, tf.float32.max)  # a NaN is not less than anything


def _power(values):
    """Returns the largest powers of two that are not above some positive float32 values."""
    # By the bits of the exponent: a logarithm may be rounded differently on another machine. As uint32, because
    # constants of type int32 would be copied from the host.
    exponents = tf.bitwise.bitwise_and(tf.bitcast(values, tf.uint32), tf.constant(_EXPONENT, tf.uint32))
    return tf.bitcast(exponents, tf.float32)


class _Member:
    """One member of the collectives.

    Each of its collectives waits for the one before it: if two members ran two collectives in different orders, each
    would wait for the other.

    Args:
      size: how many members the collectives have.
      hint: 'nccl' or 'ring', how they communicate.
    """

    def __init__(self, size, hint):
        self._size = size
        self._hint = hint
        self._reduced = []

    def reduce(self, tensor, operation):
        """Returns what an operation, 'Add' or 'Max', makes of the tensors of all members."""
        if self._size == 1:
            return tensor
        with tf.control_dependencies(self._reduced[-1:]):
            self._reduced.append(tf.raw_ops.CollectiveReduce(
                input=tensor, group_size=self._size, group_key=_GROUP_KEY, instance_key=len(self._reduced) + 1,
                merge_op=operation, final_op='Id', subdiv_offsets=[0], communication_hint=self._hint))
        return self._reduced[-1]
