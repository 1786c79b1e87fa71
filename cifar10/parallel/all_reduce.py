"""All-reduce: the mean of the towers' tensors, on each of their devices. Only `CollectiveReduce` moves anything."""
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from cifar10.parallel.devices import Devices
from cifar10.parallel.gpus import communication
from cifar10.parallel.packing import pack

_GROUP_KEY = 1  # any number, but the same in all members of a collective


def means_over_towers(towers: Sequence[Sequence[tf.Tensor]], devices: Devices) -> list[list[tf.Tensor]]:
    """Averages tensors over all towers, on each group of devices.

    Args:
      towers: for each tower a list of float32 tensors on its device, with the same shapes as those of the others.
      devices: the Devices of the towers.

    Returns:
      For each group of devices a list of the means, on its first device.
    """
    num_groups = len(devices.groups)
    means = []
    for group, device in enumerate(devices.tower_devices[:num_groups]):
        members = towers[group::num_groups]
        with tf.device(device), tf.name_scope(f'all_reduce_{group}'):
            # Weighted, so that the mean over the groups is the mean over the towers.
            sums = [_weighted_sum(tensors, num_groups / len(towers)) for tensors in zip(*members)]
            means.append(_mean_over_groups(sums, num_groups, communication(devices.on_gpus)))
    return means


def _weighted_sum(tensors, weight):
    """Returns the sum of tensors times a weight; a single one of weight 1 without a copy."""
    return tensors[0] if len(tensors) == weight == 1 else tf.add_n(tensors) * weight


def _mean_over_groups(tensors, size, hint):
    """Builds one member's part of an all-reduce.

    Each collective waits for the one before it in the same member: if two members ran two collectives in
    different orders, each would wait for the other.

    Args:
      tensors: float32 tensors; the same shapes in every member.
      size: how many members the collective has.
      hint: 'nccl' or 'ring', how they communicate.

    Returns:
      The tensors' means over the members.
    """
    packed, unpack = pack(tensors)
    means = []
    for i, tensor in enumerate(packed):
        with tf.control_dependencies(means[-1:]):
            means.append(tf.raw_ops.CollectiveReduce(
                input=tensor, group_size=size, group_key=_GROUP_KEY, instance_key=i + 1, merge_op='Add',
                final_op='Div', subdiv_offsets=[0], communication_hint=hint))
    return unpack(means)
