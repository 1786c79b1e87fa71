"""The moments of a step: marks on its way through a training graph, and the parts that they divide it into.

A mark is an operation that waits for others; nothing waits for it. TensorFlow's trace of a step (RunMetadata) says when
each mark had nothing left to wait for. (A timestamp that a mark itself took could be late: where all threads are busy,
it stands in their queue.) This file knows the graph of a step, but neither how it is run nor what is said about it.
"""
from typing import Any

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.parallel.devices import Devices
from cifar10.tools.explain.parts import ALL_REDUCE, AVERAGING, BETWEEN, INPUT, REPLICAS, TOWERS, TRANSFERS, UPDATE, Lap
from cifar10.training.loop import TrainingGraph

_MODE = 'update/'  # the name scope of what the update modes build after the towers
_COLLECTIVE = 'Collective'  # how the types of collective operations begin


class Moments:
    """Adds marks to a training graph, to be fetched together with its step.

    Args:
      graph: of the training; it is the current graph, and not finalised.
      devices: the Devices of the towers.

    Attributes:
      fetch: operations and tensors to fetch with the step.
      after_averaging: what to fetch for a step up to the averaged gradients, without the update; [] in `mirrored`.
      after_towers: what to fetch for the gradients of all towers only; [] in `mirrored`.
      of_group: for each group of devices, what to fetch for the gradients of its towers only; [] in `mirrored`.
      megabytes: what travels in a step: variables to the towers and gradients back, where these share no memory.
      averaging: AVERAGING or ALL_REDUCE, whichever the update mode does.
    """

    def __init__(self, graph: TrainingGraph, devices: Devices):
        self._devices = devices
        self._has_turns = graph.step.turns is not None
        self._nodes = []  # for each moment the names of operations: it is when the last of them had nothing to wait for
        self.fetch = []
        self.after_averaging, self.after_towers, self.of_group = [], [], []
        self.megabytes = 0.0
        self.averaging = AVERAGING
        with tf.name_scope('explain/'):
            for k in range(devices.num_towers):
                self._add_tower(k, graph)
            averaged = []
            if self._has_turns:
                averaged = [gradient for gradient, _ in graph.step.gradients if gradient is not None]
                self._add_shortcuts(averaged, graph.step)
            with tf.device(devices.home + '/cpu:0'):
                ready, applied = _mark(averaged), _mark([graph.train_step])
            arrived, is_collective = _averaging(averaged)
            if is_collective:
                self.averaging = ALL_REDUCE
                # `averaged` is the result of one member only, which would wait for the others forever.
                self.after_averaging += [operation for operation in tf.get_default_graph().get_operations()
                                         if operation.type.startswith(_COLLECTIVE)]
            self.fetch += [ready, applied]
            self._nodes += [arrived or [ready.name], [ready.name], [applied.name]]

    def _add_tower(self, k, graph):
        """Adds the marks of a tower: its turn has begun, its batch has come, its variables have come, it has ended."""
        turns = graph.step.turns
        # Not by marks on the host: what a GPU sends there may come after much that it has computed meanwhile.
        batch = [_corner(tensor) for tensor in graph.batches[k]]
        variables = _travelled(k)
        with tf.device(self._devices.hosts[k]):
            ended = _mark([turns.ended[k] if turns else graph.train_step])
            begun = _mark([turns.begun[k]]) if turns else ended
        self.megabytes += 2 * sum(corner.op.inputs[0].shape.num_elements() * 4 / 1e6 for corner in variables)
        self.fetch += [begun, ended, *batch, *variables]
        came, arrivals = ([tensor.op.name for tensor in corners] for corners in (batch, variables))
        self._nodes += [[begun.name] if turns else came, came, [*came, *arrivals], [ended.name]]

    def _add_shortcuts(self, averaged, step):
        """Adds what a step needs that leaves something out."""
        groups = len(self._devices.groups)
        towers = [[_corner(tensor) for tensor in tensors] for tensors in step.turns.computed]
        self.of_group = [sum(towers[g::groups], []) for g in range(groups)]
        self.after_towers = sum(towers, [])
        # Where a step averages nothing, the gradients that it shows are those of tower 0 alone.
        self.after_averaging = list(self.after_towers) if step.average else [_corner(tensor) for tensor in averaged]

    def lap(self, step_stats: Any, begin: float, end: float) -> Lap:
        """Returns a step as its moments divide it.

        The towers' part follows the device whose towers were ready last, through the turns of its towers. The clock of
        another task may differ, so only differences are taken of it: what is left between its towers and the arrival
        of their gradients belongs to the transfers.

        Args:
          step_stats: the `step_stats` of its RunMetadata.
          begin, end: when the step began and ended, by `time.time`.
        """
        ready = {node.node_name: node.scheduled_micros / 1e6 for device in step_stats.dev_stats
                 for node in device.node_stats}
        times = np.array([max((ready[name] for name in names if name in ready), default=0) for names in self._nodes])
        arrived, averaged, applied = times[-3:]
        towers = times[:-3].reshape(-1, 4)  # begun, batch has come, variables have come, ended
        towers = np.maximum.accumulate(towers, 1)
        if not self._has_turns:
            came = max(towers[:, 1].max(), begin)
            return self._lap({INPUT: came - begin, REPLICAS: applied - came}, begin, end, np.zeros(0), 0.0,
                             [(g, 'input', 0, towers[g, 1] - begin) for g in range(len(towers))] +
                             [(g, 'tower, all-reduce, update', towers[g, 1] - begin, applied - begin)
                              for g in range(len(towers))])
        groups = len(self._devices.groups)
        chains = [towers[g::groups] for g in range(groups)]
        # Only the machine that is home has the clock of this process.
        starts = [chain[0, 0] - begin if host == self._devices.home + '/cpu:0' else 0.0
                  for chain, host in zip(chains, self._devices.group_hosts)]
        lengths = [chain[-1, 3] - chain[0, 0] for chain in chains]
        last = int(np.argmax(np.add(starts, lengths)))
        chain = chains[last]
        waits, variables, computes = (np.diff(chain, axis=1)[:, i].sum() for i in range(3))
        gaps = lengths[last] - waits - variables - computes  # between two turns
        # A device may join an all-reduce before the last tower is ready, and gradients arrive a moment before the turn
        # ends. `arrived` is 0 where graph optimisation has removed all operations that take gradients.
        done = begin + starts[last] + lengths[last]
        done, arrived, averaged, applied = np.maximum.accumulate([done, arrived, averaged, applied])
        back, reduction, update = np.diff([done, arrived, averaged, applied])
        parts = {INPUT: waits, TOWERS: computes + gaps}
        if self.megabytes:
            parts.update({TRANSFERS: variables + back, self.averaging: reduction})
        else:
            parts[self.averaging], back = back + reduction, 0.0
        parts[UPDATE] = update
        devices = np.array([np.diff(chain, axis=1)[:, 2].sum() for chain in chains])
        bars = self._bars(chains, starts, last, begin, arrived, averaged, applied)
        return self._lap(parts, begin, end, devices, back, bars)

    def _lap(self, parts, begin, end, devices, back, bars):
        seconds = end - begin
        parts[BETWEEN] = seconds - sum(parts.values())
        return Lap(seconds, parts, devices, back, bars)

    def _bars(self, chains, starts, last, begin, arrived, averaged, applied):
        bars = []
        groups = len(chains)
        waits = f"waits for {'+'.join(self._devices.groups[last])}"
        for g, chain in enumerate(chains):
            # The clock of another task is set so that its first turn begins with the step.
            times = chain - (chain[0, 0] - starts[g])
            for i, (begun, batch, came, ended) in enumerate(times):
                names = ('input', 'variables', f'tower {g + i * groups}')
                bars += [(g, name, first, last)
                         for name, first, last in zip(names, (begun, batch, came), (batch, came, ended))]
            bars.append((g, 'gradients' if g == last else waits, times[-1, 3], max(arrived - begin, times[-1, 3])))
        first = arrived
        if self.averaging == ALL_REDUCE:
            first = min(begin + starts[g] + chains[g][-1, 3] - chains[g][0, 0] for g in range(groups))
        bars.append((-1, self.averaging, first - begin, averaged - begin))
        bars.append((-1, 'update', averaged - begin, applied - begin))
        return bars


def _mark(after):
    """Returns an operation that runs once the operations or tensors `after` have run."""
    with tf.control_dependencies(after):
        return tf.timestamp(name='mark').op  # graph optimisation would remove an operation that does nothing


def _corner(tensor, device=None):
    """Returns the first value of a tensor, on a device (default: the tensor's). Fetching it computes the tensor."""
    # As arrays, because the empty list of a scalar would become a float32 tensor.
    begin, end = np.zeros(tensor.shape.rank, np.int32), np.ones(tensor.shape.rank, np.int32)
    with tf.device(device or tensor.device):
        return tf.strided_slice(tensor, begin, end)


def _travelled(k):
    """Returns a value of each variable that has to travel to tower k, on the device to which it travels."""
    corners = []
    for read in tf.get_default_graph().get_operations():
        if read.type == 'ReadVariableOp' and read.name.startswith(f'tower_{k}/'):
            value = read.outputs[0]
            for device in {consumer.device for consumer in value.consumers()}:
                if _memory(device) != _memory(read.inputs[0].device):
                    corners.append(_corner(value, device))  # a tensor travels to a device once, whatever uses it there
    return corners


def _memory(device):
    """Returns a key that is equal for devices that share a memory, as the CPU devices of a task do."""
    spec = tf2.DeviceSpec.from_string(device)
    return spec.job, spec.task, *((spec.device_type, spec.device_index) if spec.device_type == 'GPU' else ())


def _averaging(averaged):
    """Follows averaged gradients back to those of the towers.

    Returns:
      (names of the operations that take the towers' gradients where they are averaged, whether that is an all-reduce).
    """
    first, seen, collective = set(), set(), False
    devices = {tensor.device for tensor in averaged}
    pending = list(averaged)
    while pending:
        tensor = pending.pop()
        operation = tensor.op
        if operation in seen or not operation.name.startswith(_MODE) or tensor.device not in devices:
            continue
        seen.add(operation)
        collective |= operation.type.startswith(_COLLECTIVE)
        outside = [source for source in operation.inputs
                   if source.op.type != 'Const' and not (source.op.name.startswith(_MODE) and source.device in devices)]
        if outside:
            first.add(operation.name)
        pending += operation.inputs
    return sorted(first), collective
