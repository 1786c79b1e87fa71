"""The GPUs of this machine: how many there are, which of them this process uses, and how they communicate."""
import glob
import itertools
import os
import pathlib
import re

import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError

# The path exists once the kernel has loaded NVIDIA's driver, in containers too; the pattern matches only where GPUs
# may be used, once for each.
_NVIDIA_DRIVER = '/proc/driver/nvidia/version'
_NVIDIA_DEVICES = '/dev/nvidia[0-9]*'
# Of CUDA 12, with which TensorFlow 2.16 to 2.21 are built
# (https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
_FIRST_DRIVER = '525'

_MOST_CPU_DEVICES = 64  # more only cost time: the towers share the processors

_VISIBLE, _ORDER = 'CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER'
_HIDES_THE_REST = '', '-1', 'NoDevFiles'  # entries of the first; the last is Slurm's


def why_cpu(num_devices: int, kind: str, per_tower: int, count_flag: str) -> str:
    """Returns why towers run on CPU devices; '' if they run on GPUs. The arguments are as for `devices.choose`.

    Raises:
      UsageError: the machine has too few GPUs, or GPUs that TensorFlow cannot use, or none although `kind` is 'gpu' or
        the environment names some; or the CPU devices would be too many.
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
    if num_devices > _MOST_CPU_DEVICES:
        raise UsageError(f'{count_flag}={num_devices}: of CPU devices ({reason}) there can be {_MOST_CPU_DEVICES}; '
                         f'use {count_flag}={_MOST_CPU_DEVICES} or fewer, which --num_towers may share')
    return reason


def _why_none():
    """Returns (why TensorFlow finds no GPU, the remedy if it should find one; otherwise '')."""
    visible = selection()
    if visible and not _listed():
        return f'{visible} hides all GPUs', ''
    absent = '' if os.path.exists(_NVIDIA_DRIVER) else 'no GPU found'
    if not absent and not glob.glob(_NVIDIA_DEVICES):
        absent = 'this container has been given no GPU'
    if absent:
        return (f'{visible}, but {absent}', 'check whether nvidia-smi lists them') if visible else (absent, '')
    driver = re.search(r'\d{3}\.[\d.]+', pathlib.Path(_NVIDIA_DRIVER).read_text())
    return (f"this machine has an NVIDIA GPU and the driver {driver[0] if driver else ''}, but TensorFlow cannot use it"
            f"{visible and ' with '}{visible}", f"install driver {_FIRST_DRIVER} or newer, and the CUDA "
            "libraries by pip install 'tensorflow[and-cuda]'")


def selection() -> str:
    """Returns the environment variables that select GPUs, such as 'CUDA_VISIBLE_DEVICES=2,5'; '' if none do."""
    names = [name for name in (_VISIBLE, _ORDER) if name in os.environ]
    return ' '.join(f'{name}={os.environ[name]}' for name in names) if _VISIBLE in names else ''


def available() -> str:
    """Returns a phrase that says how many GPUs there are."""
    return f"{f'{selection()} leaves' if selection() else 'this machine has'} {count()} GPU{'s' if count() > 1 else ''}"


def _listed():
    entries = map(str.strip, os.environ.get(_VISIBLE, '').split(','))
    return list(itertools.takewhile(lambda entry: entry not in _HIDES_THE_REST, entries))


def memory_limits() -> list[list]:
    """Returns for each GPU the megabytes of its logical devices, as a list that is empty if it is not split."""
    return [[logical.memory_limit for logical in tf.config.get_logical_device_configuration(gpu) or ()]
            for gpu in tf.config.list_physical_devices('GPU')]


def count() -> int:
    """Returns the number of GPUs of this machine; the logical devices of a GPU that is split count each."""
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
        reserves what each logical device may use.
    """
    used_gpus = []
    for index, logical in enumerate(limits):
        if count > 0:
            used_gpus.append((index, not logical))
            count -= max(len(logical), 1)
    return used_gpus


def claim(count: int) -> None:
    """Makes the first `count` GPUs the only ones that this process uses, and lets their memory grow.

    Call it before building anything: `Dataset.map` starts TensorFlow's process-wide runtime while the graph
    is being built, and the GPUs and memory that the runtime starts with override every later ConfigProto.

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
    """Returns the compute capability of each visible GPU, such as (8, 0); (0, 0) where none is known."""
    details = map(tf.config.experimental.get_device_details, tf.config.get_visible_devices('GPU'))
    return [each.get('compute_capability', (0, 0)) for each in details] or [(0, 0)]
