"""The configuration of TensorFlow sessions for the towers' devices, and the check for missing devices."""
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError
from cifar10.base.graphs import keep_order_of_sums
from cifar10.parallel import gpus
from cifar10.parallel.devices import Devices

LEADER = '/job:worker/replica:0/task:0'  # the task that leads the collectives of a cluster


def session_config(devices: Devices, log_device_placement: bool = False, xla: bool = False,
                   fuse: bool = True, fold: bool = True) -> tf.ConfigProto:
    """Returns the `tf.ConfigProto` of a session on `devices`, with the GPU options that `gpus.claim` has set.

    Args:
      log_device_placement: print the device of every operation.
      xla: compile with XLA on GPUs.
      fuse: let TensorFlow fuse operations ("remapping").
      fold: let TensorFlow fold constants, which may reorder products.
    """
    config = tf.ConfigProto(
        device_count={'GPU': devices.count} if devices.on_gpus else {'CPU': max(devices.count, 1), 'GPU': 0},
        # Some operations have no GPU kernel: the string constants of `copy_to_device`, and some in users' networks.
        allow_soft_placement=True,
        log_device_placement=log_device_placement)
    _limit_gpu_memory(config.gpu_options, devices)
    keep_order_of_sums(config)
    if not fuse:
        config.graph_options.rewrite_options.remapping = config.graph_options.rewrite_options.OFF
    if not fold:
        config.graph_options.rewrite_options.constant_folding = config.graph_options.rewrite_options.OFF
    if devices.target:
        # After the loss of a peer, a step may still run in the old session: the new session must not share its state.
        config.isolate_session_state = True
        config.experimental.collective_group_leader = LEADER
    if xla:
        config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1
    return config


def _limit_gpu_memory(options, devices):
    """Sets memory growth, or the memory limits of the logical devices of split GPUs."""
    limits = gpus.memory_limits()
    used = gpus.used(devices.num_gpus, limits)
    options.allow_growth = all(grows for _, grows in used)
    if not options.allow_growth:
        options.visible_device_list = ','.join(str(index) for index, _ in used)
        for index, _ in used:
            options.experimental.virtual_devices.add(memory_limit_mb=limits[index])


def refuse_absent(session: tf.Session, devices: Devices) -> None:
    """Raises a UsageError if a session lacks a tower's device; soft placement would silently replace it."""
    missing = absent(devices, [device.name for device in session.list_devices()])
    if missing:
        raise UsageError(f"this process started TensorFlow without {' '.join(missing)}; start a new process")


def absent(devices: Devices, present: list[str]) -> list[str]:
    """Returns the names of missing tower devices.

    Args:
      present: full names of the existing devices, as in `session.list_devices()`.
    """
    def identity(name):
        spec = tf2.DeviceSpec.from_string(name)
        task = (spec.job, spec.task) if devices.target else ()  # without a cluster, device names have no task
        return *task, spec.device_type, spec.device_index
    existing = set(map(identity, present))
    return [name for group in devices.groups for name in group if identity(name) not in existing]
