"""Which devices the towers get, and how TensorFlow is configured for them.

The GPUs are counted first, so that no tower lands on the CPU silently, and only those that are used are claimed.
"""
import dataclasses
import glob
import os

import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.errors import UsageError

LEADER = '/job:worker/replica:0/task:0'  # the task that leads the collectives of a cluster

# The first is there when the kernel has loaded NVIDIA's driver, in containers too; the others where GPUs may be used.
_NVIDIA_DRIVER = '/proc/driver/nvidia/version'
_NVIDIA_DEVICES = '/dev/nvidia[0-9]*'


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
    def towers(self) -> tuple[str, ...]:
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
    found = sum(max(len(limits), 1) for limits in _memory_limits())
    if found >= num_devices:
        return named('gpu')
    if found:
        raise UsageError(f"{count_flag}={num_devices}, but this machine has {found} GPU{'s' * (found > 1)}; use "
                         f'{count_flag}={found}, or --tower_device=cpu')
    reason = why_no_gpu()
    if reason is None:
        raise UsageError("this machine has an NVIDIA GPU and its driver, but TensorFlow cannot use it; pip install -e "
                         "'.[gpu]' brings the CUDA libraries, or use --tower_device=cpu")
    if kind == 'gpu':
        raise UsageError(f'--tower_device=gpu: {reason}; use --tower_device=cpu')
    return named('cpu', reason)


def why_no_gpu() -> str | None:
    """Returns why TensorFlow found no GPU, or None if it should have found one."""
    chosen = os.environ.get('CUDA_VISIBLE_DEVICES')
    if chosen is not None and chosen.split(',')[0].strip() in ('', '-1', 'NoDevFiles'):
        return f'CUDA_VISIBLE_DEVICES={chosen} hides all GPUs'
    if not os.path.exists(_NVIDIA_DRIVER):
        return 'no GPU found'
    return None if glob.glob(_NVIDIA_DEVICES) else 'this container has been given no GPU'


def _memory_limits():
    """Returns for each GPU of this machine the megabytes of its logical devices; of one that is not split, none."""
    return [[part.memory_limit for part in tf.config.get_logical_device_configuration(gpu) or ()]
            for gpu in tf.config.list_physical_devices('GPU')]


def communication(on_gpus: bool) -> str:
    """Returns how the members of a collective communicate: 'nccl' between GPUs, 'ring' between anything else.

    NCCL refuses two members on one GPU, which logical devices are.
    """
    return 'nccl' if on_gpus and not any(_memory_limits()) else 'ring'


def gpus_used(devices: Devices, memory_limits: list[list]) -> list[tuple[int, bool]]:
    """Returns (index, whether its memory grows as needed) of each GPU that Devices of this process use.

    Args:
      devices: a Devices.
      memory_limits: for each GPU the limits of its logical devices, in MB. The memory of a GPU that is
        split does not grow: TensorFlow reserves what each part may use.
    """
    used, left = [], devices.count if devices.on_gpus else 0
    for index, limits in enumerate(memory_limits):
        if left > 0:
            used.append((index, not limits))
            left -= max(len(limits), 1)
    return used


def claim(devices: Devices) -> None:
    """Makes the GPUs of these Devices the only ones that this process takes, and lets their memory grow.

    To be called before anything is built: `Dataset.map` starts TensorFlow's process-wide runtime while the
    graph is being built, and the GPUs and memory that it starts with override every later ConfigProto.

    Args:
      devices: the Devices of this process.

    Raises:
      UsageError: the runtime has started already, without these GPUs.
    """
    gpus = tf.config.list_physical_devices('GPU')
    used = [(gpus[index], grows) for index, grows in gpus_used(devices, _memory_limits())]
    try:
        tf.config.set_visible_devices([gpu for gpu, _ in used], 'GPU')
        for gpu, grows in used:
            if grows:
                tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        if not {gpu for gpu, _ in used} <= set(tf.config.get_visible_devices('GPU')):
            raise UsageError('this process has already started TensorFlow with other GPUs; start a new one') from error


def least_capability() -> tuple[int, int]:
    """Returns the lowest compute capability of the visible GPUs, such as (8, 0)."""
    gpus = tf.config.get_visible_devices('GPU')
    return min((tf.config.experimental.get_device_details(gpu).get('compute_capability', (0, 0)) for gpu in gpus),
               default=(0, 0))


def absent(devices: Devices, present: list[str]) -> list[str]:
    """Returns the names of tower devices that do not exist.

    Args:
      devices: a Devices.
      present: names of the devices that exist, as `session.list_devices()` has them.
    """
    def key(name):
        spec = tf2.DeviceSpec.from_string(name)
        return spec.job, spec.task, spec.device_type, spec.device_index
    existing = {key(name)[-4 if devices.target else -2:] for name in present}
    return [part for group in devices.groups for part in group
            if key(part)[-4 if devices.target else -2:] not in existing]


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


def session_config(devices: Devices, log_device_placement: bool = False, xla: bool = False,
                   fuse: bool = True) -> tf.ConfigProto:
    """Returns the `tf.ConfigProto` of a session with these Devices.

    Args:
      devices: a Devices.
      log_device_placement: let TensorFlow print the device of every operation.
      xla: let TensorFlow compile what it can for the GPUs.
      fuse: let TensorFlow join operations where it has one for both.

    As many CPU devices as the towers need; GPUs as `claim` leaves them.
    """
    config = tf.ConfigProto(
        device_count={'GPU': devices.count} if devices.on_gpus else {'CPU': max(devices.count, 1), 'GPU': 0},
        # The towers' devices are known to be there, and all but one kind of operation that the towers and modes put on
        # a GPU has a kernel there: the exception is the string constants of `copy_to_device`. What a network of one's
        # own holds besides may need the CPU too.
        allow_soft_placement=True,
        log_device_placement=log_device_placement)
    memory_limits = _memory_limits()
    used = gpus_used(devices, memory_limits)
    config.gpu_options.allow_growth = all(grows for _, grows in used)
    if not config.gpu_options.allow_growth:
        config.gpu_options.visible_device_list = ','.join(str(index) for index, _ in used)
        for index, _ in used:
            config.gpu_options.experimental.virtual_devices.add(memory_limit_mb=memory_limits[index])
    if not fuse:
        config.graph_options.rewrite_options.remapping = config.graph_options.rewrite_options.OFF
    if devices.target:
        # A session that follows the loss of a peer must not meet what a step of the one before it left running.
        config.isolate_session_state = True
        config.experimental.collective_group_leader = LEADER
    if xla:
        config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1
    return config
