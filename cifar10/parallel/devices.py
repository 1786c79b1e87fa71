"""The devices of the towers.

GPUs are counted before the graph is built, so no tower silently falls back to the CPU.
"""
import dataclasses

import tensorflow as tf2

from cifar10.parallel import gpus

_MAX_NAMED = 8  # groups of devices in a line


@dataclasses.dataclass(frozen=True)
class Devices:
    """The devices of the towers. With D groups of devices, tower k runs on group k mod D.

    Attributes:
      groups: tuples of device names such as '/gpu:0' or '/job:worker/task:1/cpu:0'. A group computes one tower at a
        time. It has one device, or several with model parallelism.
      on_gpus: whether the devices are GPUs.
      reason: why towers run on CPU devices; for GPUs, the environment variables that select them, or ''.
      servers: the CPUs that hold shared variables.
      target: target of the session that reaches all devices; '' for a session within this process.
      num_towers: at least the number of groups, the default.
    """
    groups: tuple[tuple[str, ...], ...]
    on_gpus: bool
    reason: str = ''
    servers: tuple[str, ...] = ('/cpu:0',)
    target: str = ''
    num_towers: int = 0

    def __post_init__(self):
        object.__setattr__(self, 'num_towers', self.num_towers or len(self.groups))

    def group_of(self, k: int) -> int:
        """Returns the index of tower k's group."""
        return k % len(self.groups)

    def devices_of(self, k: int) -> tuple[str, ...]:
        """Returns tower k's devices: one, or several with model parallelism."""
        return self.groups[self.group_of(k)]

    @property
    def tower_devices(self) -> tuple[str, ...]:
        """Each tower's device; with model parallelism its first device."""
        return tuple(self.devices_of(k)[0] for k in range(self.num_towers))

    @property
    def group_hosts(self) -> tuple[str, ...]:
        """Each group's CPU device on the same machine."""
        return tuple(group[0].rpartition('/')[0] + '/cpu:0' for group in self.groups)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Each tower's CPU device on the same machine."""
        return tuple(self.group_hosts[self.group_of(k)] for k in range(self.num_towers))

    def place(self, k: int) -> str:
        """Returns a label for tower k's devices, such as '/gpu:0', or '/gpu:0 (worker 1)' in a cluster."""
        task = tf2.DeviceSpec.from_string(self.hosts[k]).task
        return '+'.join(self.devices_of(k)) + ('' if task is None else f' (worker {task})')

    @property
    def home(self) -> str:
        """The task of operations without a device; '' without a cluster."""
        return self.group_hosts[0].removesuffix('/cpu:0')

    @property
    def count(self) -> int:
        """The number of devices in all groups."""
        return sum(len(group) for group in self.groups)

    @property
    def num_gpus(self) -> int:
        """The number of GPUs in all groups."""
        return self.count if self.on_gpus else 0

    def with_towers(self, num_towers: int) -> 'Devices':
        """Returns these Devices with `num_towers` towers and without groups that would have no tower."""
        return dataclasses.replace(self, groups=self.groups[:num_towers], num_towers=num_towers)

    def spread(self, num_workers: int, num_ps: int, target: str = '') -> 'Devices':
        """Returns the Devices of a cluster with these Devices in each worker.

        Args:
          num_workers: number of worker tasks.
          num_ps: number of ps tasks, which hold the shared variables; with 0, worker 0 holds them.
          target: target of the session that reaches all tasks.
        """
        tasks = [f'/job:worker/task:{i}' for i in range(num_workers)]
        servers = [f'/job:ps/task:{i}/cpu:0' for i in range(num_ps)] or [tasks[0] + '/cpu:0']
        groups = [tuple(task + name for name in group) for task in tasks for group in self.groups]
        return dataclasses.replace(self, groups=tuple(groups), servers=tuple(servers), target=target, num_towers=0,
                                   reason='' if self.on_gpus else self.reason)  # each worker selects its own GPUs

    def __str__(self):
        kind = 'GPU' if self.on_gpus else 'CPU device'
        plural = 's' if self.count > 1 else ''
        reason = f' ({self.reason})' if self.reason else ''
        names = ['+'.join(group) for group in self.groups]
        if len(names) > _MAX_NAMED:
            names[3:-1] = ['...']
        return f'{self.count} {kind}{plural}{reason}: ' + ' '.join(names)


def choose(num_devices: int, kind: str, per_tower: int = 1, count_flag: str = '--num_gpus') -> Devices:
    """Returns the Devices of `num_devices` / `per_tower` towers on this machine.

    Args:
      num_devices: a multiple of per_tower.
      kind: 'gpu', 'cpu', or 'auto': GPUs if the machine has any, else CPU devices.
      per_tower: number of devices of each tower.
      count_flag: the caller's flag for num_devices, for error messages.
    """
    reason = gpus.why_cpu(num_devices, kind, per_tower, count_flag)
    names = [f"/{'cpu' if reason else 'gpu'}:{i}" for i in range(num_devices)]
    groups = tuple(tuple(names[i:i + per_tower]) for i in range(0, num_devices, per_tower))
    return Devices(groups, not reason, reason or gpus.selection())
