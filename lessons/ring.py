"""The ring of lesson 3, cut in two halves, and counts of a graph's tensors, for lesson 8 and its exercises."""
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf


def on_each(devices: Sequence[str], function: Callable, *lists: Sequence) -> list:
    """Calls a function on each device, with that device's element of each list; returns the D results."""
    made = []
    for device, *values in zip(devices, *lists):
        with tf.device(device):
            made.append(function(*values))
    return made


def reduce_scatter(arrays: Sequence[tf.Tensor], devices: Sequence[str]) -> list[tf.Tensor]:
    """Adds D arrays of one dimension in a ring; device d gets chunk d of the sum, a D-th of it, and nothing else."""
    count = len(devices)
    chunks = on_each(devices, lambda array: tf.split(array, count), arrays)
    sums = [chunks[d][d - 1] for d in range(count)]
    for step in range(1, count):
        # Each device gets the sum of the device before it, and adds its own chunk.
        received = on_each(devices, tf.identity, [sums[d - 1] for d in range(count)])
        sums = on_each(devices, tf.add, received,
                       [chunks[d][d - 1 - step] for d in range(count)])
    return sums


def all_gather(chunks: Sequence[tf.Tensor], devices: Sequence[str]) -> list[tf.Tensor]:
    """Sends D chunks, one from each device, around the ring; every device gets all of them as one array."""
    count = len(devices)
    received = [chunks]  # [step][device]: after step s, device d has received chunk d - s
    for _ in range(1, count):
        received.append(on_each(devices, tf.identity, [received[-1][d - 1] for d in range(count)]))
    return on_each(devices, lambda parts: tf.concat(parts, 0), [
        [received[(d - chunk) % count][d] for chunk in range(count)] for d in range(count)])


def all_reduce(arrays: Sequence[tf.Tensor], devices: Sequence[str]) -> list[tf.Tensor]:
    """Both halves: every device gets the sum of D arrays, which have the same shape and a multiple of D numbers."""
    flat = on_each(devices, lambda array: tf.reshape(array, [-1]), arrays)
    sums = all_gather(reduce_scatter(flat, devices), devices)
    return on_each(devices, lambda total: tf.reshape(total, arrays[0].shape), sums)


def needed(operation: tf.Operation) -> set[tf.Operation]:
    """Returns an operation and all operations that run before it."""
    found, to_do = set(), [operation]
    while to_do:
        last = to_do.pop()
        if last not in found:
            found.add(last)
            to_do += [*last.control_inputs, *(tensor.op for tensor in last.inputs)]
    return found


def sent(operation: tf.Operation, device: int = 0) -> list[tuple[tf.Tensor, tf.Operation]]:
    """Returns (tensor, reader) for each tensor of a device that an operation on another device reads in a run."""
    def place(each):
        variables = [tensor for tensor in each.inputs if tensor.dtype == tf.resource]
        return variables[0].device if variables else each.device  # a variable is read and assigned where it is

    return [(tensor, reader) for reader in needed(operation) for tensor in reader.inputs if tensor.dtype != tf.resource
            and place(tensor.op).endswith(f':{device}') and place(reader) != place(tensor.op)]


def bytes_sent(operation: tf.Operation, device: int = 0) -> int:
    """Returns the bytes of the tensors that a device sends in a run of an operation."""
    return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor, _ in sent(operation, device))


def most_at_once(pairs: Sequence[tuple[Any, Any]]) -> int:
    """Returns how many of some tensors may exist at the same time, as far as the order in the graph is fixed.

    Args:
      pairs: (tensor, last reader) for each tensor, in the order of creation. The last reader is the last tensor or
        operation that needs the tensor.
    """
    operations = [[getattr(each, 'op', each) for each in pair] for pair in pairs]
    most = 0
    for i, (made, _) in enumerate(operations):
        before = needed(made)
        most = max(most, 1 + sum(end not in before for _, end in operations[:i]))
    return most
