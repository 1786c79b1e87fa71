"""The GPUs of this machine: their number, the GPUs that this process uses, and their communication."""
import glob
import itertools
import os
import pathlib
import re

import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError

# The path exists once the kernel has loaded NVIDIA's driver, in containers too. The pattern matches once for each GPU
# that the process may use.
_NVIDIA_DRIVER = '/proc/driver/nvidia/version'
_NVIDIA_DEVICES = '/dev/nvidia[0-9]*'
# TensorFlow 2.16 to 2.21 are built with CUDA 12
# (https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
_FIRST_DRIVER = '525'

_MAX_CPU_DEVICES = 64  # more only cost time: the towers share the processors

_VISIBLE, _ORDER = 'CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER'
_HIDES_THE_REST = '', '-1', 'NoDevFiles'  # entries of CUDA_VISIBLE_DEVICES; Slurm writes NoDevFiles


def why_cpu(num_devices: int, kind: str, per_tower: int, count_flag: str) -> str:
    """Returns the reason for towers on CPU devices; '' if they run on GPUs. `devices.choose` describes the arguments.

    Raises:
      UsageError: the machine has too few GPUs, or GPUs that TensorFlow cannot use, or none although `kind` is 'gpu' or
        the environment selects some; or `num_devices` exceeds the limit for CPU devices.
    """
    if kind == 'cpu':
        return _few(num_devices, count_flag, 'as requested')
    num_gpus = count()
    if num_gpus >= num_devices:
        return ''
    if num_gpus:
        fitting = num_gpus // per_tower * per_tower
        remedy = f'{count_flag}={fitting}' if fitting else f'{count_flag}={num_gpus} --gpus_per_tower={num_gpus}'
        raise UsageError(f'{count_flag}={num_devices}, but {available()}; use {remedy}, or --tower_device=cpu')
    reason, remedy = _why_none()
    if remedy:
        raise UsageError(f'{reason}; {remedy}, or use --tower_device=cpu')
    if kind == 'gpu':
        raise UsageError(f'--tower_device=gpu: {reason}; use --tower_device=cpu')
    return _few(num_devices, count_flag, reason)


def _few(num_devices, count_flag, reason):
    if num_devices > _MAX_CPU_DEVICES:
        raise UsageError(f'{count_flag}={num_devices} is above the limit of {_MAX_CPU_DEVICES} CPU devices ({reason}); '
                         f'use {count_flag}={_MAX_CPU_DEVICES}, and --num_towers for more towers')
    return reason


def _why_none():
    """Returns (the reason why TensorFlow finds no GPU, a remedy or '')."""
    visible = selection()
    if visible and not _listed():
        return f'{visible} hides all GPUs', ''
    absent = '' if os.path.exists(_NVIDIA_DRIVER) else 'no GPU found'
    if not absent and not glob.glob(_NVIDIA_DEVICES):
        absent = 'this container has no GPU'
    if absent:
        return (f'{visible}, but {absent}', 'check whether nvidia-smi lists them') if visible else (absent, '')
    driver = re.search(r'\d{3}\.[\d.]+', pathlib.Path(_NVIDIA_DRIVER).read_text())
    return (f"this machine has an NVIDIA GPU with driver {driver[0] if driver else ''}, but TensorFlow cannot use it"
            f"{visible and ' with '}{visible}", f"install driver {_FIRST_DRIVER} or newer, and the CUDA "
            "libraries by pip install 'tensorflow[and-cuda]'")


def selection() -> str:
    """Returns the environment variables that select GPUs, such as 'CUDA_VISIBLE_DEVICES=2,5'; '' if none is set."""
    names = [name for name in (_VISIBLE, _ORDER) if name in os.environ]
    return ' '.join(f'{name}={os.environ[name]}' for name in names) if _VISIBLE in names else ''


def available() -> str:
    """Returns a phrase such as 'this machine has 2 GPUs'."""
    return f"{f'{selection()} leaves' if selection() else 'this machine has'} {count()} GPU{'s' if count() > 1 else ''}"


def _listed():
    entries = map(str.strip, os.environ.get(_VISIBLE, '').split(','))
    return list(itertools.takewhile(lambda entry: entry not in _HIDES_THE_REST, entries))


def memory_limits() -> list[list]:
    """Returns a list for each GPU: the megabytes of its logical devices, empty if the GPU is not split."""
    return [[logical.memory_limit for logical in tf.config.get_logical_device_configuration(gpu) or ()]
            for gpu in tf.config.list_physical_devices('GPU')]


def count() -> int:
    """Returns the number of GPUs of this machine, counting each logical device of a split GPU."""
    return sum(max(len(limits), 1) for limits in memory_limits())


def communication(on_gpus: bool) -> str:
    """Returns the implementation of collectives: 'nccl' between GPUs, 'ring' between other devices.

    NCCL refuses two members on one GPU, so logical devices use 'ring'.
    """
    return 'nccl' if on_gpus and not any(memory_limits()) else 'ring'


def used(count: int, limits: list[list]) -> list[tuple[int, bool]]:
    """Returns (index, whether its memory grows as needed) of each physical GPU in use.

    Args:
      count: number of logical GPUs in use, counted from the first.
      limits: from `memory_limits`. The memory of a split GPU does not grow: TensorFlow reserves the limit of each
        logical device.
    """
    used_gpus = []
    for index, logical in enumerate(limits):
        if count > 0:
            used_gpus.append((index, not logical))
            count -= max(len(logical), 1)
    return used_gpus


def claim(count: int) -> None:
    """Limits this process to the first `count` GPUs and lets their memory grow.

    Call it before the graph is built: `Dataset.map` starts TensorFlow's process-wide runtime, whose GPUs and memory
    options override every later ConfigProto.

    Raises:
      UsageError: the runtime has already started without these GPUs.
    """
    if not (physical := tf.config.list_physical_devices('GPU')):
        return
    claimed = [(physical[index], grows) for index, grows in used(count, memory_limits())]
    try:
        tf.config.set_visible_devices([gpu for gpu, _ in claimed], 'GPU')
        for gpu, grows in claimed:
            if grows:
                tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        if not {gpu for gpu, _ in claimed} <= set(tf.config.get_visible_devices('GPU')):
            raise UsageError('this process has already started TensorFlow with other GPUs; start a new '
                             'process') from error


def capabilities() -> list[tuple[int, int]]:
    """Returns the compute capability of each visible GPU, such as (8, 0); (0, 0) if it is unknown."""
    details = map(tf.config.experimental.get_device_details, tf.config.get_visible_devices('GPU'))
    return [detail.get('compute_capability', (0, 0)) for detail in details] or [(0, 0)]
