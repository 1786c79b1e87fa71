"""The console: TensorFlow started without its log lines, and output that nobody reads any more.

TensorFlow is imported by `start_tensorflow` only, so that `--help` and a mistyped flag are answered at once.
"""
import atexit
import contextlib
import errno
import gc
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import TextIO

# Lines that TensorFlow writes to file descriptor 2 while it starts. They survive every log level,
# because they are written before the logging library reads it. Anything else is passed on.
_START_UP_CHATTER = re.compile(
    rb'All log messages before absl::InitializeLog'
    rb'|oneDNN custom operations are on'
    rb'|Could not find cuda drivers on your machine'
    rb'|failed call to cuInit'
    rb'|Unable to register cu\w+ (factory|plug)'
    rb'|computation placer already registered'
    rb'|binary is optimized to use available CPU instructions'
    rb'|To enable the following instructions'
    rb'|MLIR V1 optimization pass is not enabled')

# The oldest and the newest TensorFlow with which the whole test suite has passed.
TRIED = (2, 16), (2, 21)


def unread(error: OSError) -> bool:
    """Returns whether an error in writing to a stream means that its pipe (`| head`) or its terminal was closed."""
    return error.errno in (errno.EPIPE, errno.EIO)


def discard(stream: TextIO) -> None:
    """Lets everything that is still written to a stream vanish, once its reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def start_tensorflow(verbose: bool = False) -> None:
    """Imports TensorFlow quietly and switches it to graph mode.

    Args:
      verbose: keep TensorFlow's own log lines (`--log_device_placement` writes through them).
    """
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '0' if verbose else '2')
    with _uncollected(), contextlib.nullcontext() if verbose else quiet_stderr():
        import tensorflow.compat.v1 as tf
        untried = _untried(tf.__version__)
        if untried:
            print(untried, flush=True)
        tf.disable_eager_execution()
        tf.enable_resource_variables()
        tf.logging.set_verbosity(tf.logging.INFO if verbose else tf.logging.FATAL)
        threading.excepthook = _excepthook
        # Said of more than 32 towers that take turns at one iterator.
        warnings.filterwarnings('ignore', 'An unusually high number of `Iterator.get_next')
        # Looking for devices is what makes the CUDA libraries speak.
        tf.config.list_physical_devices()
        with tf.Session(graph=tf.Graph(), config=tf.ConfigProto(device_count={'GPU': 0})) as session:
            with session.graph.as_default():
                session.run(tf.no_op())


@contextlib.contextmanager
def _uncollected():
    """Context whose objects are excluded from garbage collection, because they live as long as the process.

    Going through the million objects of TensorFlow's modules takes half a second while they are imported, and one when
    the process ends, as it does so for the last time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
    atexit.register(gc.freeze)


def _untried(version):
    """Returns a warning about a version of TensorFlow outside the range that was tried, or None."""
    if TRIED[0] <= tuple(int(part) for part in version.split('.')[:2]) <= TRIED[1]:
        return None
    oldest, newest = ('.'.join(map(str, each)) for each in TRIED)
    return f'warning: TensorFlow {version} is outside {oldest} to {newest}, with which this program was tested'


def _excepthook(arguments):
    """Ignores errors in the thread of an event file: whoever writes next gets them."""
    if arguments.thread.name != 'EventLoggerThread':
        sys.__excepthook__(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)


@contextlib.contextmanager
def quiet_stderr(chatter: re.Pattern = _START_UP_CHATTER) -> Iterator[None]:
    """Holds back the lines on file descriptor 2 that match a pattern of bytes, and passes on all others."""
    sys.stderr.flush()
    terminal = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    relay = threading.Thread(target=_relay, args=(reading, terminal, chatter), daemon=True)
    relay.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)  # closes the pipe's last writing end, which ends the relay
        relay.join()
        os.close(terminal)


def _relay(source, target, chatter):
    with os.fdopen(source, 'rb') as lines:
        for line in lines:
            if not chatter.search(line):
                os.write(target, line)
