"""Which devices the towers get.

The GPUs are counted first, so that no tower lands on the CPU silently.
"""
import dataclasses

import tensorflow as tf2

from cifar10.errors import UsageError
from cifar10.parallel import gpus


@dataclasses.dataclass(frozen=True)
class Devices:
    """The devices of the towers: tower k is on group k mod D of D groups, so any number of towers fits.

    Attributes:
      groups: groups of device names, '/gpu:0' or '/cpu:0' and so on. A group computes one tower at a time. It has
        one device, or with model parallelism several.
      on_gpus: whether they are GPUs.
      reason: why they are CPU devices; '' for GPUs.
      group_hosts: the CPU beside each group.
      servers: the CPUs that hold what is shared.
      target: of the session that reaches all of them; '' for one of this process.
      num_towers: by default one on each group, and never fewer.
    """
    groups: tuple[tuple[str, ...], ...]
    on_gpus: bool
    reason: str = ''
    group_hosts: tuple[str, ...] = ()
    servers: tuple[str, ...] = ('/cpu:0',)
    target: str = ''
    num_towers: int = 0

    def __post_init__(self):
        object.__setattr__(self, 'group_hosts', self.group_hosts or ('/cpu:0',) * len(self.groups))
        object.__setattr__(self, 'num_towers', self.num_towers or len(self.groups))

    def group_of(self, k: int) -> int:
        """Returns the number of tower k's group."""
        return k % len(self.groups)

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        """Each tower's devices."""
        return tuple(self.groups[self.group_of(k)] for k in range(self.num_towers))

    @property
    def tower_devices(self) -> tuple[str, ...]:
        """Each tower's (first) device."""
        return tuple(parts[0] for parts in self.parts)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The CPU beside each tower."""
        return tuple(self.group_hosts[self.group_of(k)] for k in range(self.num_towers))

    @property
    def home(self) -> str:
        """The task that an operation is on unless it says otherwise; '' where there is but one."""
        return self.group_hosts[0].removesuffix('/cpu:0')

    @property
    def count(self) -> int:
        """How many devices there are in all."""
        return sum(map(len, self.groups))

    @property
    def num_gpus(self) -> int:
        """How many GPUs there are in all."""
        return self.count if self.on_gpus else 0

    def with_towers(self, num_towers: int) -> 'Devices':
        """Returns the Devices of so many towers: these, without those that would be idle."""
        return dataclasses.replace(self, groups=self.groups[:num_towers], group_hosts=self.group_hosts[:num_towers],
                                   num_towers=num_towers)

    def __str__(self):
        least, more = divmod(self.num_towers, len(self.groups))
        each = f', {least} or {least + 1} each' if more else f', {least} each' if least > 1 else ''
        kind = ('GPU' if self.on_gpus else 'CPU device') + 's' * (self.count > 1)
        why = '' if self.on_gpus else f' ({self.reason})'
        return f"on {self.count} {kind}{why}{each}: {' '.join('+'.join(group) for group in self.groups)}"


NONE = Devices((), on_gpus=False)  # of a process without towers


def choose(num_devices: int, kind: str, per_tower: int = 1, count_flag: str = '--num_gpus') -> Devices:
    """Returns the Devices of `num_devices` / `per_tower` towers.

    Args:
      num_devices: int, a multiple of per_tower.
      kind: 'gpu', 'cpu', or 'auto': GPUs where there are any, else CPU devices.
      per_tower: devices of one tower.
      count_flag: the caller's flag for num_devices, for error messages.

    Raises:
      UsageError: fewer GPUs than requested, none where kind is 'gpu', or a driver whose GPUs this
        TensorFlow cannot use.
    """
    def named(name, reason=''):
        names = [f'/{name}:{i}' for i in range(num_devices)]
        parts = tuple(tuple(names[i:i + per_tower]) for i in range(0, num_devices, per_tower))
        return Devices(parts, name == 'gpu', reason)

    if kind == 'cpu':
        return named('cpu', 'as requested')
    found = sum(max(len(limits), 1) for limits in gpus.memory_limits())
    if found >= num_devices:
        return named('gpu')
    if found:
        raise UsageError(f"{count_flag}={num_devices}, but this machine has {found} GPU{'s' * (found > 1)}; use "
                         f'{count_flag}={found}, or --tower_device=cpu')
    reason = gpus.why_no_gpu()
    if reason is None:
        raise UsageError("this machine has an NVIDIA GPU and its driver, but TensorFlow cannot use it; pip install -e "
                         "'.[gpu]' brings the CUDA libraries, or use --tower_device=cpu")
    if kind == 'gpu':
        raise UsageError(f'--tower_device=gpu: {reason}; use --tower_device=cpu')
    return named('cpu', reason)


def absent(devices: Devices, present: list[str]) -> list[str]:
    """Returns the names of tower devices that do not exist.

    Args:
      devices: a Devices.
      present: names of the devices that exist, as `session.list_devices()` has them.
    """
    def key(name):
        spec = tf2.DeviceSpec.from_string(name)
        device = spec.device_type, spec.device_index
        # Within one process, names without job and task are meant.
        return (spec.job, spec.task, *device) if devices.target else device
    existing = {key(name) for name in present}
    return [name for group in devices.groups for name in group if key(name) not in existing]


def spread(local: Devices, num_workers: int, num_ps: int, target: str) -> Devices:
    """Returns the Devices of all workers of a cluster, each of which has the devices `local`.

    Args:
      local: the Devices of one worker.
      num_workers, num_ps: how many tasks there are of either job; with no ps, worker 0 holds what is shared.
      target: of the session.
    """
    tasks = [f'/job:worker/task:{i}' for i in range(num_workers)]
    servers = [f'/job:ps/task:{i}/cpu:0' for i in range(num_ps)] or [tasks[0] + '/cpu:0']
    return dataclasses.replace(
        local, groups=tuple(tuple(task + part for part in group) for task in tasks for group in local.groups),
        group_hosts=tuple(task + '/cpu:0' for task in tasks for _ in local.groups), servers=tuple(servers),
        target=target, num_towers=0)


