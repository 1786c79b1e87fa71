"""How TensorFlow's sessions are configured for the devices of the towers."""
import tensorflow.compat.v1 as tf

from cifar10.parallel import gpus
from cifar10.parallel.devices import Devices

LEADER = '/job:worker/replica:0/task:0'  # the task that leads the collectives of a cluster


def session_config(devices: Devices, log_device_placement: bool = False, xla: bool = False,
                   fuse: bool = True) -> tf.ConfigProto:
    """Returns the `tf.ConfigProto` of a session with these Devices.

    Args:
      devices: a Devices.
      log_device_placement: let TensorFlow print the device of every operation.
      xla: let TensorFlow compile what it can for the GPUs.
      fuse: let TensorFlow join operations where it has one for both.

    As many CPU devices as the towers need; GPUs as `gpus.claim` leaves them.
    """
    config = tf.ConfigProto(
        device_count={'GPU': devices.count} if devices.on_gpus else {'CPU': max(devices.count, 1), 'GPU': 0},
        # The towers' devices are known to be there, and all but one kind of operation that the towers and modes put on
        # a GPU has a kernel there: the exception is the string constants of `copy_to_device`. What a network of one's
        # own holds besides may need the CPU too.
        allow_soft_placement=True,
        log_device_placement=log_device_placement)
    limits = gpus.memory_limits()
    used = gpus.used(devices.num_gpus, limits)
    config.gpu_options.allow_growth = all(grows for _, grows in used)
    if not config.gpu_options.allow_growth:
        config.gpu_options.visible_device_list = ','.join(str(index) for index, _ in used)
        for index, _ in used:
            config.gpu_options.experimental.virtual_devices.add(memory_limit_mb=limits[index])
    if not fuse:
        config.graph_options.rewrite_options.remapping = config.graph_options.rewrite_options.OFF
    if devices.target:
        # A session that follows the loss of a peer must not meet what a step of the one before it left running.
        config.isolate_session_state = True
        config.experimental.collective_group_leader = LEADER
    if xla:
        config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1
    return config
