"""Which devices the towers get, and how the session is configured for them.

Looks before it leaps: the GPUs are counted first, so that no tower lands on the CPU in silence.
Knows devices; nothing of graphs.
"""
import dataclasses
import os

import tensorflow.compat.v1 as tf

from cifar10.console import UsageError

# There when the kernel has loaded NVIDIA's driver.
_NVIDIA_DRIVER = '/proc/driver/nvidia/version'


@dataclasses.dataclass(frozen=True)
class Devices:
    """The towers' devices.

    Attributes:
      towers: a device name a tower, '/gpu:0' or '/cpu:0' and so on.
      reason: why they are CPU devices; '' for GPUs.
    """
    towers: tuple
    reason: str = ''

    def __str__(self):
        kind, tail = ('CPU', ' (%s)' % self.reason) if self.reason else ('GPU', '')
        noun = 'device' if len(self.towers) == 1 else 'devices'
        return '%d %s %s%s: %s' % (len(self.towers), kind, noun, tail, ' '.join(self.towers))


def choose(num_towers, kind):
    """Returns the Devices for `num_towers` towers.

    Args:
      num_towers: int.
      kind: 'gpu', 'cpu', or 'auto': GPUs where there are any, else CPU devices.

    Raises:
      UsageError: fewer GPUs than towers, none where kind is 'gpu', or a driver whose GPUs this
        TensorFlow cannot use.
    """
    if kind == 'cpu':
        return _cpus(num_towers, 'as asked for')
    found = len(tf.config.list_physical_devices('GPU'))
    if found >= num_towers:
        return Devices(tuple('/gpu:%d' % i for i in range(num_towers)))
    if found:
        raise UsageError('--num_gpus=%d, but this machine has %d; use --num_gpus=%d, or --tower_device=cpu'
                         % (num_towers, found, found))
    if os.path.exists(_NVIDIA_DRIVER):
        raise UsageError("this machine has an NVIDIA driver, but TensorFlow finds no GPU; pip install -e '.[gpu]' "
                         'brings the CUDA libraries, or use --tower_device=cpu')
    if kind == 'gpu':
        raise UsageError('--tower_device=gpu, but TensorFlow finds no GPU; use --tower_device=cpu')
    return _cpus(num_towers, 'no GPU found')


def _cpus(num_towers, reason):
    return Devices(tuple('/cpu:%d' % i for i in range(num_towers)), reason)


def session_config(devices, log_device_placement=False):
    """Returns the `tf.ConfigProto` of a session with these Devices.

    As many CPU devices as there are towers on them; GPUs' memory is taken as it is needed, so that
    an evaluation fits beside a training run.
    """
    on_cpu = bool(devices.reason)
    config = tf.ConfigProto(
        device_count={'CPU': len(devices.towers), 'GPU': 0} if on_cpu else {},
        # Only for operations without a GPU kernel: the towers' devices are known to be there.
        allow_soft_placement=True,
        log_device_placement=log_device_placement)
    config.gpu_options.allow_growth = True
    return config
