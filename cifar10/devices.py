"""Which devices the towers get, and how TensorFlow is configured for them.

The GPUs are counted first, so that no tower lands on the CPU in silence, and only those that are used
are claimed. Knows devices; nothing of graphs.
"""
import dataclasses
import glob
import os

import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.console import UsageError

LEADER = '/job:worker/replica:0/task:0'  # the task that leads the collectives of a cluster

# The first is there when the kernel has loaded NVIDIA's driver, in containers too; the others where GPUs may be used.
_NVIDIA_DRIVER = '/proc/driver/nvidia/version'
_NVIDIA_DEVICES = '/dev/nvidia[0-9]*'


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


def choose(num_devices, kind, per_tower=1, count_flag='--num_gpus'):
    """Returns the Devices of `num_devices` / `per_tower` towers.

    Args:
      num_devices: int, a multiple of per_tower.
      kind: 'gpu', 'cpu', or 'auto': GPUs where there are any, else CPU devices.
      per_tower: devices of one tower.
      count_flag: the caller's flag for num_devices, for error messages.

    Raises:
      UsageError: fewer GPUs than asked for, none where kind is 'gpu', or a driver whose GPUs this
        TensorFlow cannot use.
    """
    def named(name, reason=''):
        names = ['/%s:%d' % (name, i) for i in range(num_devices)]
        return Devices(tuple(tuple(names[i:i + per_tower]) for i in range(0, num_devices, per_tower)), reason)

    if kind == 'cpu':
        return named('cpu', 'as asked for')
    found = sum(max(len(limits), 1) for limits in _memory_limits())
    if found >= num_devices:
        return named('gpu')
    if found:
        raise UsageError('%s=%d, but this machine has %d GPU%s; use %s=%d, or --tower_device=cpu'
                         % (count_flag, num_devices, found, 's' * (found > 1), count_flag, found))
    reason = _why_no_gpu()
    if reason is None:
        raise UsageError("this machine has an NVIDIA GPU and its driver, but TensorFlow cannot use it; pip install -e "
                         "'.[gpu]' brings the CUDA libraries, or use --tower_device=cpu")
    if kind == 'gpu':
        raise UsageError('--tower_device=gpu: %s; use --tower_device=cpu' % reason)
    return named('cpu', reason)


def _why_no_gpu():
    """Returns why TensorFlow found no GPU, or None if it should have found one."""
    chosen = os.environ.get('CUDA_VISIBLE_DEVICES')
    if chosen is not None and chosen.split(',')[0].strip() in ('', '-1', 'NoDevFiles'):
        return 'CUDA_VISIBLE_DEVICES=%s hides all GPUs' % chosen
    if not os.path.exists(_NVIDIA_DRIVER):
        return 'no GPU found'
    return None if glob.glob(_NVIDIA_DEVICES) else 'this container has been given no GPU'


def _memory_limits():
    """Returns for each GPU of this machine the megabytes of its logical devices; of one that is not split, none."""
    return [[part.memory_limit for part in tf.config.get_logical_device_configuration(gpu) or ()]
            for gpu in tf.config.list_physical_devices('GPU')]


def communication(device):
    """Returns how collectives of a device's group travel: 'nccl' between GPUs, 'ring' between anything else.

    NCCL refuses two members on one GPU, which logical devices are.
    """
    return 'nccl' if 'gpu' in device and not any(_memory_limits()) else 'ring'


def gpus_used(devices, memory_limits):
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


def claim(devices):
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


def absent(devices, present):
    """Returns the names of tower devices that do not exist.

    Args:
      devices: a Devices.
      present: names of the devices that exist, as `session.list_devices()` has them.
    """
    def key(name):
        spec = tf2.DeviceSpec.from_string(name)
        return spec.job, spec.task, spec.device_type, spec.device_index
    existing = {key(name)[-4 if devices.target else -2:] for name in present}
    return [part for parts in devices.parts for part in parts
            if key(part)[-4 if devices.target else -2:] not in existing]


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

    As many CPU devices as the towers need; GPUs as `claim` leaves them.
    """
    config = tf.ConfigProto(
        device_count={'GPU': devices.count} if devices.on_gpus else {'CPU': devices.count, 'GPU': 0},
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
