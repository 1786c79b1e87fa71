"""Starts TensorFlow without its log lines, in graph mode and with oneDNN; lists the settings that affect results.

Programs start TensorFlow as late as possible, so `--help` and mistyped flags are fast.
"""
import atexit
import contextlib
import gc
import importlib.util
import logging
import os
import platform
import random
import re
import sys
import threading
import warnings
from collections.abc import Iterator

import cifar10
from cifar10.base.console import flush, open_closed, say
from cifar10.base.errors import UsageError
from cifar10.base.stuck import calling_at_end

LEGACY_KERAS = 'TF_USE_LEGACY_KERAS'  # makes TensorFlow use tf.layers of tf_keras; read on import
# Enables oneDNN's kernels for CPUs; read on import. By default, TensorFlow only uses them on CPUs with AVX512_VNNI or
# newer instructions, although they are faster with AVX2, too.
_ONEDNN = 'TF_ENABLE_ONEDNN_OPTS'
# Environment variables that change the bits of results, including other switches of oneDNN and TensorFlow.
_NUMERICAL = re.compile(
    r'TF_DETERMINISTIC_OPS|TF_XLA_FLAGS|XLA_FLAGS|NVIDIA_TF32_OVERRIDE'
    r'|TF_(ENABLE|DISABLE|CUDNN|CUBLAS|ONEDNN|SET_ONEDNN|USE_CUBLAS)\w*|(ONEDNN|DNNL|CUBLAS|CUDNN)_\w+')

# Lines that TensorFlow writes to file descriptor 2 while it starts, before its logging library reads the log level.
_START_UP_CHATTER = re.compile(
    rb'All log messages before absl::InitializeLog'
    rb'|oneDNN custom operations are on'
    rb'|Could not find cuda drivers on your machine'
    rb'|failed call to cuInit'
    rb'|Unable to register cu\w+ (factory|plug)'
    rb'|computation placer already registered'
    rb'|binary is optimized to use available CPU instructions'
    rb'|To enable the following instructions'
    rb'|TF-TRT Warning: Could not find TensorRT'  # TensorFlow 2.16 and 2.17
    rb'|MLIR V1 optimization pass is not enabled')

_IS_X86 = platform.machine() == 'x86_64'  # oneDNN was not measured on other CPUs

_is_own = False  # whether the process is a program of this package
_process = None  # the ID of the process that started TensorFlow
_has_onednn = None  # whether TensorFlow uses oneDNN; None before it is started


def require_tensorflow() -> None:
    """Raises a UsageError if this Python has no TensorFlow."""
    if not importlib.util.find_spec('tensorflow'):
        raise UsageError(f'{sys.executable} has no TensorFlow; activate the environment in which you installed this '
                         'program: source .venv/bin/activate')


def own_process() -> None:
    """Prepares the process of a program of this package, without code of a caller, for TensorFlow."""
    global _is_own
    if not _is_own:
        _is_own = True
        atexit.register(gc.freeze)  # otherwise Python's last garbage collection takes a second
    _use_legacy_keras()


def start_tensorflow(verbose: bool = False) -> None:
    """Imports TensorFlow quietly and switches it to graph mode, for a program.

    Args:
      verbose: whether to keep TensorFlow's own log lines, which `--log_device_placement` needs.
    """
    own_process()
    tf = _started(verbose)
    _silence(tf, verbose)
    tf.enable_resource_variables()
    tf.disable_eager_execution()


@contextlib.contextmanager
def tensorflow_started(verbose: bool = False) -> Iterator[None]:
    """Imports TensorFlow quietly and enters a new default graph, for callers that may use TensorFlow themselves.

    At its end, the context restores TensorFlow's switches and Keras, the environment, the working directory, the random
    generators of Python and NumPy, the levels of loggers and the warning filters.
    """
    open_closed()
    require_tensorflow()
    with _restored():
        tf = _started(verbose)
        from cifar10.base.graphs import usual_switches
        levels = [(logger, logger.level) for logger in map(logging.getLogger, (None, 'absl', 'tensorflow'))]
        try:
            with warnings.catch_warnings(), _keras_restored(tf), usual_switches(), tf.Graph().as_default():
                _use_legacy_keras()
                _silence(tf, verbose)
                yield
        except AssertionError as nesting:  # a user's code left a scope open when it failed
            if isinstance(nesting.__context__, UsageError):
                raise nesting.__context__ from None
            raise
        finally:
            for logger, level in levels:
                logger.setLevel(level)


@contextlib.contextmanager
def _restored():
    import numpy as np
    environment, folder = dict(os.environ), os.open('.', os.O_PATH)
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        os.fchdir(folder)
        os.close(folder)
        random.setstate(state)
        np.random.set_state(numpy_state)


@contextlib.contextmanager
def _keras_restored(tf):
    """Context that resets TensorFlow's choice of Keras at its end, unless it was made before."""
    import tensorflow as tf2
    loaders = [(module, name, value, dict(vars(value))) for module in (tf2, tf, tf.nn)
               for name, value in vars(module).items()
               if type(value).__name__ == 'KerasLazyLoader']
    try:
        yield
    finally:
        for module, name, loader, state in loaders:
            vars(loader).clear()
            vars(loader).update(state)
            vars(module)[name] = loader


def _use_legacy_keras():
    if importlib.util.find_spec('tf_keras'):  # has tf.layers
        os.environ.setdefault(LEGACY_KERAS, '1')


def _silence(tf, verbose):
    tf.logging.set_verbosity(tf.logging.INFO if verbose else tf.logging.FATAL)
    # One warning for each layer.
    warnings.filterwarnings('ignore', r'`(tf\.layers\.\w+|tf\.nn\.rnn_cell\.\w+|layer\.apply)` is deprecated')
    # TensorFlow warns if more than 32 towers use one iterator.
    warnings.filterwarnings('ignore', 'An unusually high number of `Iterator.get_next')


def _started(verbose):
    global _process, _has_onednn
    if _process not in (None, os.getpid()):
        raise UsageError('this process was forked after TensorFlow had started, so TensorFlow would hang; start it '
                         "with multiprocessing.get_context('spawn')")
    require_tensorflow()
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '0' if verbose else '2')
    is_new = 'tensorflow' not in sys.modules
    if is_new and _IS_X86:
        os.environ.setdefault(_ONEDNN, '1')
    with (_garbage_collection_off() if is_new else contextlib.nullcontext(),
          contextlib.nullcontext() if verbose else quiet_stderr()):
        import tensorflow.compat.v1 as tf

        from cifar10.base.graphs import cpu_session

        # Listing the devices makes the CUDA libraries print, so it is done while standard error is quiet.
        tf.config.list_physical_devices()
        with cpu_session() as session:
            _has_onednn = _uses_onednn(session)
    if _IS_X86 and not _has_onednn and _ONEDNN not in os.environ:
        say('warning', 'steps on CPUs are slower because TensorFlow was imported without oneDNN; set '
                       f'{_ONEDNN}=1 before the import, or import TensorFlow after the first call of train or evaluate')
    _process = os.getpid()
    return tf


def _uses_onednn(session):
    import tensorflow.compat.v1 as tf
    x = tf.placeholder(tf.float32, [1, 1])
    options, metadata = tf.RunOptions(output_partition_graphs=True), tf.RunMetadata()
    session.run(tf.matmul(x, x), {x: [[1]]}, options, metadata)
    return any(node.op.startswith('_Mkl') for graph in metadata.partition_graphs for node in graph.node)


@contextlib.contextmanager
def _garbage_collection_off():
    """Context without garbage collection, which takes half a second while TensorFlow creates a million objects.

    In a program's process, later collections exclude these objects, too, because they live as long as the process.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _is_own:
            gc.freeze()
        if was_on:
            gc.enable()


@contextlib.contextmanager
def quiet_stderr(chatter: re.Pattern = _START_UP_CHATTER) -> Iterator[None]:
    """Context that drops lines on file descriptor 2 that match a pattern, and forwards all other lines.

    It redirects the descriptor, because C++ libraries do not write through `sys.stderr`.

    Args:
      chatter: a bytes pattern to search for in each line.
    """
    flush(sys.stderr)
    terminal = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    relay = threading.Thread(target=_relay, args=(reading, terminal, chatter), daemon=True)
    relay.start()

    def restore():
        flush(sys.stderr)
        os.dup2(terminal, 2)  # closes the pipe's last writing end and so ends the relay
        relay.join()
        os.close(terminal)
    with calling_at_end(restore):
        yield


def _relay(source, target, chatter):
    with os.fdopen(source, 'rb') as lines:
        for line in lines:
            if not chatter.search(line):
                os.write(target, line)


def numerics() -> dict[str, str]:
    """Returns the settings that change the bits of results on the same hardware with the same software, by name.

    The settings are oneDNN, the number of threads that share the sums of operations, and environment variables.
    """
    given = os.environ.get('TF_NUM_INTRAOP_THREADS', '')
    threads = given if given.isdigit() and int(given) else len(os.sched_getaffinity(0))
    variables = {name: value for name, value in sorted(os.environ.items())
                 if name != _ONEDNN and _NUMERICAL.fullmatch(name)}
    return {'oneDNN': 'on' if _has_onednn else 'off', 'threads': str(threads), **variables}


def versions(on_gpus: bool) -> dict[str, str]:
    """Returns the versions of the software in this process, and the model of its processor or GPUs."""
    import numpy as np
    import tensorflow.compat.v1 as tf
    if on_gpus:
        names = [tf.config.experimental.get_device_details(gpu).get('device_name', gpu.name)
                 for gpu in tf.config.get_visible_devices('GPU')]
    else:
        with open('/proc/cpuinfo') as stream:
            names = [line.partition(':')[2].strip() for line in stream if line.startswith('model name')]
    return {'cifar10': cifar10.__version__, 'Python': platform.python_version(), 'TensorFlow': tf.__version__,
            'NumPy': np.__version__, 'GPU' if on_gpus else 'CPU': ', '.join(sorted(set(names))) or platform.machine()}
