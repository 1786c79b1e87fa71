"""What a person at the terminal meets: errors in one line, exit statuses, no framework chatter.

Knows processes, file descriptors and signals. Must not import TensorFlow at import time, so that
`--help` and a mistyped flag answer at once.
"""
import contextlib
import errno
import os
import re
import signal
import socket
import sys
import threading
import warnings

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

_RELAYED = re.compile(r'grpc_message:"((?:[^"\\]|\\.)*)"')


class UsageError(Exception):
    """Something the user asked for cannot be: told in one line with the remedy, exit status 2."""


class RunError(Exception):
    """Something failed under way: told in one line, exit status 1."""


def run(main):
    """Calls a script's `main` and returns the exit status of the process.

    Args:
      main: a function without arguments.

    Returns:
      0; 2 after a UsageError; 1 after a RunError or an error of the operating system; 128 + its number
      after a signal that came before there was anything to save.
    """
    program = os.path.basename(sys.argv[0])
    sys.stdout.reconfigure(line_buffering=True)  # in a file or a pipe too, a line is there when it is printed
    try:
        main()
        status = 0
    except UsageError as error:
        status = _fail(program, error, 2)
    except RunError as error:
        status = _fail(program, error, 1)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except OSError as error:
        status = _fail(program, describe_os_error(error), 1)
    except BaseException as error:
        # TensorFlow may turn the KeyboardInterrupt that a signal raises into an error of its own.
        number = Termination.interrupted or (isinstance(error, KeyboardInterrupt) and signal.SIGINT)
        if not number:
            raise
        status = _fail(program, 'interrupted', 128 + number)
    return status


def _fail(program, message, status):
    print('%s: error: %s' % (program, ' '.join(str(message).split())), file=sys.stderr, flush=True)
    return status


def describe_os_error(error):
    """Returns an OSError as a phrase: the file that it concerns and what happened."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += '; free some space and start again'
    return '%s: %s' % (error.filename, reason) if error.filename else reason


def reason(error):
    """Returns the sentence in an error of TensorFlow's, without the trace of nodes that it stands in."""
    text = str(error)
    relayed = _RELAYED.search(text)
    if relayed:  # what another process answered, as gRPC quotes it
        text = relayed.group(1).replace('\\n', '\n').replace('\\t', '\t').replace('\\"', '"')
    text = re.split(r'\n\t \[\[|\n\nOriginal stack trace|\s*; NodeDef: ', text)[0].strip()
    lines = text.splitlines() or [type(error).__name__]
    return lines[-1] if lines[0].startswith('Graph execution error') else lines[0]


def start_tensorflow(verbose=False):
    """Imports TensorFlow quietly and switches it to graph mode.

    Args:
      verbose: keep TensorFlow's own log lines (`--log_device_placement` writes through them).
    """
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '0' if verbose else '2')
    with contextlib.nullcontext() if verbose else quiet_stderr():
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


def _untried(version):
    """Returns a warning about a version of TensorFlow outside the range that was tried, or None."""
    if TRIED[0] <= tuple(int(part) for part in version.split('.')[:2]) <= TRIED[1]:
        return None
    return 'warning: TensorFlow %s is outside %d.%d to %d.%d, with which this program was tested' % (
        version, *TRIED[0], *TRIED[1])


def _excepthook(arguments):
    """Says nothing of an event file's thread: whoever writes next gets its error."""
    if arguments.thread.name != 'EventLoggerThread':
        sys.__excepthook__(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)


@contextlib.contextmanager
def quiet_stderr():
    """Holds back the known start-up lines on file descriptor 2, and passes on all others."""
    sys.stderr.flush()
    terminal = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    relay = threading.Thread(target=_relay, args=(reading, terminal), daemon=True)
    relay.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)  # closes the pipe's last writing end, which ends the relay
        relay.join()
        os.close(terminal)


def _relay(source, target):
    with os.fdopen(source, 'rb') as lines:
        for line in lines:
            if not _START_UP_CHATTER.search(line):
                os.write(target, line)


class Termination:
    """SIGINT and SIGTERM: the first asks for an orderly end, the second ends the process at once.

    Until `defer()` there is nothing to save, and the first signal ends the process as well, as soon as the
    interpreter gets to it; the second does not wait for that.

    Attributes:
      requested: the name of the first signal after `defer()`, for the loop to see; None before it.
      interrupted: the number of a signal that came earlier; of the class, as signals are of the process.
    """
    interrupted = None

    def __init__(self):
        self.requested = None
        self._deferred, self._early = False, False
        # Python runs handlers between its own instructions, hence not within a long step. A thread
        # learns of a signal at once, from a byte that the interpreter writes when it arrives.
        self._bytes, self._writing = socket.socketpair()
        self._writing.setblocking(False)
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)
        threading.Thread(target=self._watch, daemon=True).start()

    def defer(self, until='after this step'):
        """From here on a first signal only sets `requested`, and says when the process ends."""
        self._deferred, self._until = True, until

    def _handle(self, number, frame):
        del frame
        if not self._deferred:
            Termination.interrupted = number
            raise KeyboardInterrupt

    def _watch(self):
        while True:
            number, = self._bytes.recv(1)
            if self.requested or (self._early and not self._deferred):
                os._exit(128 + number)
            if not self._deferred:  # the handler raises, once TensorFlow lets the interpreter go on
                self._early = True
                continue
            self.requested = signal.Signals(number).name
            # On a terminal the line begins with ^C.
            print('%sstopping   %s: %s; once more ends at once' % (
                '\n' if sys.stdout.isatty() else '', self.requested, self._until), flush=True)
