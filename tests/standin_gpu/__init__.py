"""Stand-in GPUs: devices of type GPU that compute on the CPU, so that GPU paths run on a machine without a GPU.

They show where TensorFlow places operations, the copies between devices, the GPUs that a process uses, and the growth
of their memory. They show neither the results nor the speed of CUDA, cuDNN or NCCL.

`python -m tests.standin_gpu COMMAND ...` runs a command with four of them.
"""
import ctypes
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
from importlib import metadata
from typing import NamedTuple

from cifar10.base import startup

HOST = -1
_PLUGIN = 'TF_PLUGGABLE_DEVICE_LIBRARY_PATH'
_NVIDIA_DRIVER = '/proc/driver/nvidia/version'
_SOURCE = pathlib.Path(__file__).with_name('standin.cc')
_BUILT = pathlib.Path(__file__).with_name('built')


class Unavailable(Exception):
    """Stand-in GPUs are unavailable here; the message gives the reason."""


@functools.cache
def library() -> str:
    """Returns the path of the plugin, and builds it first if none exists for this TensorFlow.

    Raises:
      Unavailable: it cannot be built or used here.
    """
    if os.path.exists(_NVIDIA_DRIVER):
        raise Unavailable('this machine has GPUs of its own')
    try:
        version = metadata.version('tensorflow')
    except metadata.PackageNotFoundError:
        raise Unavailable('the package tensorflow is not installed; others have no CUDA kernels') from None
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:8]
    path = _BUILT / f'tensorflow-{version}-{digest}.so'
    if not path.exists():
        _build(path)
    return str(path)


def _build(path):
    """Builds the plugin for the installed TensorFlow; raises Unavailable if that fails."""
    startup.start_tensorflow()
    import tensorflow as tf
    if not tf.test.is_built_with_cuda():
        raise Unavailable('this TensorFlow is a build without CUDA kernels')
    compiler = shutil.which('g++')
    if not compiler:
        raise Unavailable('there is no g++ to build stand-in GPUs with')
    unfinished = path.with_suffix(f'.{os.getpid()}')  # another process may be building it too
    try:
        _BUILT.mkdir(exist_ok=True)
        subprocess.run([compiler, '-O1', '-fPIC', '-shared', '-w', *tf.sysconfig.get_compile_flags(), str(_SOURCE),
                        '-o', str(unfinished), *tf.sysconfig.get_link_flags()],
                       check=True, capture_output=True, text=True)
        unfinished.rename(path)
    except subprocess.CalledProcessError as error:
        said = error.stderr.splitlines() or [error]  # a killed compiler prints nothing
        raise Unavailable(f'stand-in GPUs do not build: {said[0]}') from error
    except OSError as error:
        raise Unavailable(f'stand-in GPUs cannot be built: {error}') from error


def environment(count: int = 4, megabytes: int = 2048) -> dict[str, str]:
    """Returns the environment variables of a process with `count` stand-in GPUs of `megabytes` of memory each.

    oneDNN is off, because TensorFlow uses it on CPU devices only. A process on CPU devices needs this variable too, to
    compute the same bits.
    """
    return {_PLUGIN: library(), 'STANDIN_GPUS': str(count), 'STANDIN_MB': str(megabytes),
            'TF_ENABLE_ONEDNN_OPTS': '0', 'TF_CPP_MIN_LOG_LEVEL': '3'}


class Report(NamedTuple):
    """The use of stand-in GPUs by this process so far.

    Attributes:
      copies: (from, to) -> (copies, bytes), where a place is the number of a GPU, or HOST. Copies within one GPU
        do not count.
      allocated: number of a GPU -> bytes of its memory that TensorFlow holds.
    """
    copies: dict
    allocated: dict


def report() -> Report:
    """Returns the Report of this process, which must have stand-in GPUs."""
    plugin = ctypes.CDLL(os.environ[_PLUGIN])
    plugin.standin_report.restype = ctypes.c_char_p
    found = Report({}, {})
    for line in plugin.standin_report().decode().splitlines():
        what, *numbers = line.split()
        numbers = [int(number) for number in numbers]
        if what == 'copied':
            found.copies[tuple(numbers[:2])] = tuple(numbers[2:])
        else:
            found.allocated[numbers[0]] = numbers[1]
    return found
