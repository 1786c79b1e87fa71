"""TensorFlow sessions for the devices of the towers: how they are configured, and whether they lack a device."""
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError
from cifar10.base.graphs import keep_order_of_sums
from cifar10.parallel import gpus
from cifar10.parallel.devices import Devices

LEADER = '/job:worker/replica:0/task:0'  # the task that leads the collectives of a cluster


def session_config(devices: Devices, log_device_placement: bool = False, xla: bool = False,
                   fuse: bool = True, fold: bool = True) -> tf.ConfigProto:
    """Returns the `tf.ConfigProto` of a session with as many CPU devices or GPUs as `devices` has.

    GPUs are configured as `gpus.claim` left them.

    Args:
      log_device_placement: print the device of every operation.
      xla: compile with XLA whatever it can compile for GPUs.
      fuse: let TensorFlow fuse operations ("remapping").
      fold: let TensorFlow fold constants, for which it reorders products.
    """
    config = tf.ConfigProto(
        device_count={'GPU': devices.count} if devices.on_gpus else {'CPU': max(devices.count, 1), 'GPU': 0},
        # Some operations have no kernel for GPUs: the string constants of `copy_to_device`, and some of own networks.
        allow_soft_placement=True,
        log_device_placement=log_device_placement)
    _limit_gpu_memory(config.gpu_options, devices)
    keep_order_of_sums(config)
    if not fuse:
        config.graph_options.rewrite_options.remapping = config.graph_options.rewrite_options.OFF
    if not fold:
        config.graph_options.rewrite_options.constant_folding = config.graph_options.rewrite_options.OFF
    if devices.target:
        # The session that follows the loss of a peer must not share state with a step that still runs in the
        # one before it.
        config.isolate_session_state = True
        config.experimental.collective_group_leader = LEADER
    if xla:
        config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1
    return config


def _limit_gpu_memory(options, devices):
    """Lets TensorFlow take a GPU's memory as it needs it, or all that other processes have left, if they have some."""
    limits = gpus.memory_limits()
    used = gpus.used(devices.num_gpus, limits)
    options.allow_growth = all(grows for _, grows in used)
    if not options.allow_growth:
        options.visible_device_list = ','.join(str(index) for index, _ in used)
        for index, _ in used:
            options.experimental.virtual_devices.add(memory_limit_mb=limits[index])


def refuse_absent(session: tf.Session, devices: Devices) -> None:
    """Raises a UsageError if a session lacks devices of the towers: soft placement would silently use others."""
    missing = absent(devices, [device.name for device in session.list_devices()])
    if missing:
        raise UsageError(f"TensorFlow has made no {' '.join(missing)} in this process, because it was started with "
                         'other devices; start a new process')


def absent(devices: Devices, present: list[str]) -> list[str]:
    """Returns the names of tower devices that do not exist.

    Args:
      present: full names of the devices that exist, as in `session.list_devices()`.
    """
    def identity(name):
        spec = tf2.DeviceSpec.from_string(name)
        task = (spec.job, spec.task) if devices.target else ()  # within one process, names leave it out
        return *task, spec.device_type, spec.device_index
    existing = set(map(identity, present))
    return [name for group in devices.groups for name in group if identity(name) not in existing]
