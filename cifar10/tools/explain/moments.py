"""The moments of a step: marks on its way through a training graph, and the parts that they divide it into.

A mark is an operation that waits for others; nothing waits for it. TensorFlow's trace of a step (RunMetadata) says when
each mark had nothing left to wait for. (A timestamp that a mark itself took could be late: where all threads are busy,
it stands in their queue.)
"""
import statistics
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.training.graph import TrainingGraph
from cifar10.training.plan import Plan

# The parts of a step, in their order. ALL_REDUCE takes the place of TRANSFERS and AVERAGING in `replicated`.
INPUT, TOWERS, TRANSFERS, AVERAGING, ALL_REDUCE, UPDATE, BETWEEN = (
    'input', 'towers', 'transfers', 'averaging', 'all-reduce', 'update', 'between')

_MODE = 'update/'  # the name scope of what the update modes build after the towers


class Lap(NamedTuple):
    """One step, or the mean of some.

    Attributes:
      parts: the seconds of each part, by its name.
      devices: float64 [groups], the seconds that the towers of each group of devices computed.
    """
    parts: dict[str, float]
    devices: np.ndarray

    @property
    def seconds(self) -> float:
        """The seconds of the step."""
        return sum(self.parts.values())


def mean_lap(laps: Sequence[Lap]) -> Lap:
    """Returns the mean of some steps."""
    parts = {part: statistics.mean(lap.parts[part] for lap in laps) for part in laps[0].parts}
    return Lap(parts, np.mean([lap.devices for lap in laps], 0))


class TowerTimes(NamedTuple):
    """When a tower's turn began, its batch had come, its variables had come, and its turn ended; in seconds."""
    begun: float
    batch: float
    variables: float
    ended: float


class Moments:
    """Adds marks to a training graph, to be fetched together with its step.

    Args:
      graph: of the training; it is the current graph, and not finalised.
      plan: of the run.

    Attributes:
      fetch: operations and tensors to fetch with the step.
      after_averaging: what to fetch for a step up to the averaged gradients, without the update.
      of_group: for each group of devices, what to fetch for the gradients of its towers only.
      megabytes: sent between devices in a step: variables out and gradients back, where towers share no memory.
    """

    def __init__(self, graph: TrainingGraph, plan: Plan):
        self._devices = plan.devices
        groups = len(plan.devices.groups)
        self.fetch = []
        self.megabytes = 0.0
        # A moment is a list of names of operations: it is when the last of them had nothing left to wait for.
        with tf.name_scope('explain/'):
            # For each tower the TowerTimes, as moments.
            self._of_towers = [self._mark_tower(k, graph) for k in range(plan.devices.num_towers)]
            averaged = [gradient for gradient, _ in graph.step.gradients if gradient is not None]
            towers = [[_corner(tensor) for tensor in tensors] for tensors in graph.step.turns.computed]
            self.of_group = [sum(towers[g::groups], []) for g in range(groups)]
            # Where a step averages nothing, the gradients that it shows are those of tower 0 alone.
            self.after_averaging = (
                sum(towers, []) if plan.mode.drifts else [_corner(tensor) for tensor in averaged])
            with tf.device(plan.devices.home + '/cpu:0'):
                ready, applied = _mark(averaged), _mark([graph.train_step])
        collectives = [] if plan.mode.drifts else [
            operation for operation in tf.get_default_graph().get_operations() if operation.type == 'CollectiveReduce']
        self._averaging = ALL_REDUCE if collectives else AVERAGING
        # `averaged` is the result of one member only, which would wait for the others forever.
        self.after_averaging = [*self.after_averaging, *collectives]
        self.fetch += [ready, applied]
        self._after_towers = [_arrivals(averaged) or [ready.name], [ready.name], [applied.name]]

    def _mark_tower(self, k, graph):
        """Adds the marks of a tower; returns its TowerTimes, as moments."""
        turns = graph.step.turns
        # Not by marks on the host: what a GPU sends there may come after much that it has computed meanwhile.
        batch = [_corner(tensor) for tensor in graph.batches[k]]
        variables = _travelled(k)
        with tf.device(self._devices.hosts[k]):
            ended, begun = _mark([turns.ended[k]]), _mark([turns.begun[k]])
        self.megabytes += 2 * sum(corner.op.inputs[0].shape.num_elements() * 4 / 1e6 for corner in variables)
        self.fetch += [begun, ended, *batch, *variables]
        came, arrivals = ([tensor.op.name for tensor in corners] for corners in (batch, variables))
        return TowerTimes([begun.name], came, [*came, *arrivals], [ended.name])

    def lap(self, step_stats: Any, begin: float, end: float) -> Lap:
        """Returns a step as its moments divide it; its parts follow the device whose towers were ready last.

        Args:
          step_stats: the `step_stats` of its RunMetadata.
          begin, end: when the step began and ended, by `time.time`.
        """
        ready = {node.node_name: node.scheduled_micros / 1e6 for device in step_stats.dev_stats
                 for node in device.node_stats}

        def time(moment):  # 0 where graph optimisation has removed all its operations
            return max((ready[name] for name in moment if name in ready), default=0.0)
        groups = len(self._devices.groups)
        towers = [TowerTimes(*accumulate(map(time, moments), max)) for moments in self._of_towers]
        turns = [self._since(begin, towers[g::groups], g) for g in range(groups)]  # of the towers of each group
        last = max(range(groups), key=lambda g: turns[g][-1].ended)
        towers = turns[last]
        # A device may join an all-reduce before the last tower is ready, and gradients arrive a moment before the turn
        # ends.
        done, arrived, averaged, applied = accumulate(
            (towers[-1].ended, *(time(moment) - begin for moment in self._after_towers)), max)
        waits = sum(tower.batch - tower.begun for tower in towers)
        variables = sum(tower.variables - tower.batch for tower in towers)
        parts = {INPUT: waits, TOWERS: done - towers[0].begun - waits - variables}
        back = arrived - done if self.megabytes else 0.0
        if self.megabytes:
            parts[TRANSFERS] = variables + back
        parts.update({self._averaging: averaged - done - back, UPDATE: applied - averaged})
        parts[BETWEEN] = end - begin - sum(parts.values())
        return Lap(parts, np.array([sum(tower.ended - tower.variables for tower in group) for group in turns]))

    def _since(self, begin, towers, group):
        """Returns the TowerTimes of a group since the step began.

        Only the machine that is home has the clock of this process. On another the first turn is taken to begin with
        the step: what is left until its gradients arrive belongs to the transfers.
        """
        is_home = self._devices.group_hosts[group] == self._devices.home + '/cpu:0'
        zero = begin if is_home else towers[0].begun
        return [TowerTimes(*(time - zero for time in tower)) for tower in towers]


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


def _arrivals(averaged):
    """Returns the names of the operations that take the towers' gradients where they are averaged."""
    first, seen = set(), set()
    devices = {tensor.device for tensor in averaged}
    pending = list(averaged)
    while pending:
        tensor = pending.pop()
        operation = tensor.op
        if operation in seen or not operation.name.startswith(_MODE) or tensor.device not in devices:
            continue
        seen.add(operation)
        if any(source.op.type != 'Const' and not (source.op.name.startswith(_MODE) and source.device in devices)
               for source in operation.inputs):
            first.add(operation.name)
        pending += operation.inputs
    return sorted(first)
