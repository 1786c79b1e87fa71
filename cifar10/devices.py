"""Which devices the towers get, and how the session is configured for them.

Looks before it leaps: the GPUs are counted first, so that no tower lands on the CPU in silence.
Knows devices; nothing of graphs.
"""
import dataclasses
import os

import tensorflow.compat.v1 as tf

from cifar10.console import UsageError

LEADER = '/job:worker/replica:0/task:0'  # the task that leads the collectives of a cluster

# There when the kernel has loaded NVIDIA's driver.
_NVIDIA_DRIVER = '/proc/driver/nvidia/version'


@dataclasses.dataclass(frozen=True)
class Devices:
    """The towers' devices.

    Attributes:
      parts: for each tower the names of its devices, '/gpu:0' or '/cpu:0' and so on.
      reason: why they are CPU devices; '' for GPUs.
      hosts: the CPU beside each tower.
      servers: the CPUs that hold what is shared.
      target: of the session that reaches all of them; '' for one of this process.
    """
    parts: tuple
    reason: str = ''
    hosts: tuple = ()
    servers: tuple = ('/cpu:0',)
    target: str = ''

    def __post_init__(self):
        object.__setattr__(self, 'hosts', self.hosts or ('/cpu:0',) * len(self.parts))

    @property
    def towers(self):
        """Each tower's (first) device."""
        return tuple(parts[0] for parts in self.parts)

    @property
    def home(self):
        """The task that an operation is on unless it says otherwise; '' where there is but one."""
        return self.hosts[0].removesuffix('/cpu:0')

    @property
    def on_gpus(self):
        """Whether they are GPUs."""
        return not self.reason

    @property
    def count(self):
        """How many devices there are in all."""
        return sum(map(len, self.parts))

    def __str__(self):
        return '%d on %s: %s' % (len(self.parts), 'CPU devices (%s)' % self.reason if self.reason else 'GPUs',
                                 ' '.join('+'.join(parts) for parts in self.parts))


def choose(num_devices, kind, per_tower=1):
    """Returns the Devices of `num_devices` / `per_tower` towers.

    Args:
      num_devices: int, a multiple of per_tower.
      kind: 'gpu', 'cpu', or 'auto': GPUs where there are any, else CPU devices.
      per_tower: devices of one tower.

    Raises:
      UsageError: fewer GPUs than asked for, none where kind is 'gpu', or a driver whose GPUs this
        TensorFlow cannot use.
    """
    def named(name, reason=''):
        names = ['/%s:%d' % (name, i) for i in range(num_devices)]
        return Devices(tuple(tuple(names[i:i + per_tower]) for i in range(0, num_devices, per_tower)), reason)

    if kind == 'cpu':
        return named('cpu', 'as asked for')
    found = len(tf.config.list_physical_devices('GPU'))
    if found >= num_devices:
        return named('gpu')
    if found:
        raise UsageError('--num_gpus=%d, but this machine has %d; use --num_gpus=%d, or --tower_device=cpu'
                         % (num_devices, found, found))
    if os.path.exists(_NVIDIA_DRIVER):
        raise UsageError("this machine has an NVIDIA driver, but TensorFlow finds no GPU; pip install -e '.[gpu]' "
                         'brings the CUDA libraries, or use --tower_device=cpu')
    if kind == 'gpu':
        raise UsageError('--tower_device=gpu, but TensorFlow finds no GPU; use --tower_device=cpu')
    return named('cpu', 'no GPU found')


def spread(local, num_workers, num_ps, target):
    """Returns the Devices of all workers of a cluster, each of which has the devices `local`.

    Args:
      local: the Devices of one worker.
      num_workers, num_ps: how many tasks there are of either job; with no ps, worker 0 holds what is shared.
      target: of the session.
    """
    tasks = ['/job:worker/task:%d' % i for i in range(num_workers)]
    servers = ['/job:ps/task:%d/cpu:0' % i for i in range(num_ps)] or [tasks[0] + '/cpu:0']
    return Devices(tuple(tuple(task + part for part in parts) for task in tasks for parts in local.parts), local.reason,
                   tuple(task + '/cpu:0' for task in tasks for _ in local.parts), tuple(servers), target)


def session_config(devices, log_device_placement=False, xla=False, fuse=True):
    """Returns the `tf.ConfigProto` of a session with these Devices.

    Args:
      devices: a Devices.
      log_device_placement: let TensorFlow print the device of every operation.
      xla: let TensorFlow compile what it can for the GPUs.
      fuse: let TensorFlow join operations where it has one for both.

    As many CPU devices as the towers need; GPUs' memory is taken as it is needed, so that
    an evaluation fits beside a training run.
    """
    config = tf.ConfigProto(
        device_count={'GPU': devices.count} if devices.on_gpus else {'CPU': devices.count, 'GPU': 0},
        # Only for operations without a GPU kernel: the towers' devices are known to be there.
        allow_soft_placement=True,
        log_device_placement=log_device_placement)
    config.gpu_options.allow_growth = True
    if not fuse:
        config.graph_options.rewrite_options.remapping = config.graph_options.rewrite_options.OFF
    if devices.target:
        # A session that follows the loss of a peer must not meet what a step of the one before it left running.
        config.isolate_session_state = True
        config.experimental.collective_group_leader = LEADER
    if xla:
        config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1
    return config
