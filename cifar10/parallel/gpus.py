"""The GPUs of this machine: how many there are, which of them this process uses, and how they communicate."""
import glob
import os

import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError

# The first path exists once the kernel has loaded NVIDIA's driver, in containers too; the second matches only
# where GPUs may be used.
_NVIDIA_DRIVER = '/proc/driver/nvidia/version'
_NVIDIA_DEVICES = '/dev/nvidia[0-9]*'


def why_cpu(num_devices: int, kind: str, per_tower: int, count_flag: str) -> str:
    """Returns why towers run on CPU devices; '' if they run on GPUs. The arguments are as for `devices.choose`.

    Raises:
      UsageError: the machine has too few GPUs, or GPUs that TensorFlow cannot use, or none although `kind` is 'gpu'.
    """
    if kind == 'cpu':
        return 'as requested'
    num_gpus = count()
    if num_gpus >= num_devices:
        return ''
    if num_gpus:
        plural = 's' if num_gpus > 1 else ''
        fitting = num_gpus // per_tower * per_tower
        remedy = f'{count_flag}={fitting}' if fitting else f'{count_flag}={num_gpus} --gpus_per_tower={num_gpus}'
        raise UsageError(f'{count_flag}={num_devices}, but this machine has {num_gpus} GPU{plural}; use {remedy}, or '
                         '--tower_device=cpu')
    reason = _why_none()
    if reason is None:
        raise UsageError("this machine has an NVIDIA GPU and its driver, but TensorFlow cannot use it; pip install -e "
                         "'.[gpu]' brings the CUDA libraries, or use --tower_device=cpu")
    if kind == 'gpu':
        raise UsageError(f'--tower_device=gpu: {reason}; use --tower_device=cpu')
    return reason


def _why_none():
    """Returns why TensorFlow found no GPU, or None if it should have found one."""
    visible = os.environ.get('CUDA_VISIBLE_DEVICES')
    if visible is not None and visible.split(',')[0].strip() in ('', '-1', 'NoDevFiles'):
        return f'CUDA_VISIBLE_DEVICES={visible} hides all GPUs'
    if not os.path.exists(_NVIDIA_DRIVER):
        return 'no GPU found'
    if not glob.glob(_NVIDIA_DEVICES):
        return 'this container has been given no GPU'
    return None


def memory_limits() -> list[list]:
    """Returns for each GPU the megabytes of its logical devices, as a list that is empty if it is not split."""
    return [[part.memory_limit for part in tf.config.get_logical_device_configuration(gpu) or ()]
            for gpu in tf.config.list_physical_devices('GPU')]


def count() -> int:
    """Returns the number of GPUs of this machine; the parts of a GPU that is split count each."""
    return sum(max(len(limits), 1) for limits in memory_limits())


def communication(on_gpus: bool) -> str:
    """Returns how the members of a collective communicate: 'nccl' between GPUs, 'ring' between other devices.

    NCCL refuses two members on one GPU, as logical devices would be.
    """
    return 'nccl' if on_gpus and not any(memory_limits()) else 'ring'


def used(count: int, limits: list[list]) -> list[tuple[int, bool]]:
    """Returns (index, whether its memory grows as needed) of each physical GPU that is used.

    Args:
      count: how many logical GPUs are used, counted from the first.
      limits: as `memory_limits` returns them. The memory of a GPU that is split does not grow: TensorFlow
        reserves what each part may use.
    """
    used_gpus = []
    for index, parts in enumerate(limits):
        if count > 0:
            used_gpus.append((index, not parts))
            count -= max(len(parts), 1)
    return used_gpus


def claim(count: int) -> None:
    """Makes the first `count` GPUs the only ones that this process uses, and lets their memory grow.

    Call it before building anything: `Dataset.map` starts TensorFlow's process-wide runtime while the graph
    is being built, and the GPUs and memory that the runtime starts with override every later ConfigProto.

    Raises:
      UsageError: the runtime has already started without these GPUs.
    """
    physical = tf.config.list_physical_devices('GPU')
    claimed = [(physical[index], grows) for index, grows in used(count, memory_limits())]
    try:
        tf.config.set_visible_devices([gpu for gpu, _ in claimed], 'GPU')
        for gpu, grows in claimed:
            if grows:
                tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        if not {gpu for gpu, _ in claimed} <= set(tf.config.get_visible_devices('GPU')):
            raise UsageError('this process has already started TensorFlow with other GPUs; start a new one') from error


def least_capability() -> tuple[int, int]:
    """Returns the lowest compute capability of the visible GPUs, such as (8, 0); (0, 0) if there is none."""
    visible = tf.config.get_visible_devices('GPU')
    return min((tf.config.experimental.get_device_details(gpu).get('compute_capability', (0, 0)) for gpu in visible),
               default=(0, 0))
