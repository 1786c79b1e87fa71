"""Runs scripts in processes that are forked from a process that has imported TensorFlow.

Importing takes seconds, longer than most tests need. Otherwise these are ordinary processes: each has its own number,
arguments, environment and streams, and handles kills, signals and exit as usual. A test about the start of a process
starts it with `subprocess`.
"""
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time

_PRELOADED = (
    'cifar10.training.trainer', 'cifar10.cluster.member', 'cifar10.tools.check', 'cifar10.evaluation.of_checkpoints',
    'cifar10.evaluation.classification', 'cifar10.model.classic', 'tests.linear', 'tests.networks')
_PR_SET_CHILD_SUBREAPER = 36  # from <linux/prctl.h>


class Forked:
    """A forked process, with the methods of `subprocess.Popen` that tests use, and text streams.

    Args:
      command: [the interpreter, the script, its arguments].
      merged: whether standard error goes to standard output.
      output: a descriptor for both streams, closed here; None: pipes, read through `stdout` and `stderr`.
      errors: a descriptor for standard error alone, closed here.
      environment: the environment variables; None: this process's.
    """

    def __init__(self, command, merged=True, output=None, errors=None, environment=None):
        self.args = command
        self.returncode = None
        reading, writing = os.pipe() if output is None else (None, output)
        reading_errors, writing_errors = (None, errors or writing) if merged or errors else os.pipe()
        given = [os.open(os.devnull, os.O_RDONLY), writing, writing_errors]
        self.pid = _fork([str(each) for each in command[1:]], given, environment)
        for number in set(given):
            os.close(number)
        self.stdout = None if reading is None else open(reading)
        self.stderr = None if reading_errors is None else open(reading_errors)

    def poll(self):
        """Returns the exit status, negative for a signal, or None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=float('inf')):
        """Waits for the end; returns the exit status."""
        limit = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > limit:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        return self.returncode

    def communicate(self, timeout=float('inf')):
        """Reads the rest of the output and waits for the end; returns (standard output, standard error)."""
        limit = time.monotonic() + timeout
        texts = {}
        readers = [threading.Thread(target=lambda stream=stream: texts.update({stream: stream.read()}), daemon=True)
                   for stream in (self.stdout, self.stderr) if stream]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(min(max(limit - time.monotonic(), 0), threading.TIMEOUT_MAX))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(max(limit - time.monotonic(), 1))
        for stream in texts:
            stream.close()
        return texts[self.stdout], texts.get(self.stderr)

    def send_signal(self, number):
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(9)


def _fork(arguments, streams, environment):
    """Returns the id of a new child process that runs a script with arguments."""
    requests = _server()
    environment = dict(os.environ if environment is None else environment)
    request = json.dumps(dict(arguments=arguments, environment=environment, folder=os.getcwd())).encode()
    socket.send_fds(requests, [len(request).to_bytes(4, 'big') + request], streams)
    return int.from_bytes(requests.recv(4), 'big')


@functools.cache
def _server():
    """Starts the process that forks; returns the socket for requests. Closing the socket ends the process."""
    # This process adopts the orphans of its children, to get their exit status.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), 'prctl')
    ours, theirs = socket.socketpair()
    subprocess.Popen([sys.executable, '-m', 'tests.forked', str(theirs.fileno())], pass_fds=[theirs.fileno()],
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    theirs.close()
    return ours


def serve(requests):
    """Forks a process for each request until the socket is closed; returns the request in the new process."""
    while True:
        message, streams, *_ = socket.recv_fds(requests, 4, 3)
        if not message:
            os._exit(0)
        request = requests.recv(int.from_bytes(message, 'big'), socket.MSG_WAITALL)
        if os.fork():
            os.wait()
            for stream in streams:
                os.close(stream)
            continue
        if pid := os.fork():  # its parent exits at once, and the tests adopt it
            requests.send(pid.to_bytes(4, 'big'))
            os._exit(0)
        requests.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        # The old stream objects keep the type of their first file.
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, 'w'), open(2, 'w', 1, errors='backslashreplace')
        return json.loads(request)


def preload():
    """Imports TensorFlow and the modules that scripts import after parsing their flags."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL='2', TF_ENABLE_ONEDNN_OPTS='1')
    gc.disable()  # as `startup.start_tensorflow` does
    for name in _PRELOADED:
        importlib.import_module(name)
    sys.modules['tests.linear'].register()
    sys.modules['tests.networks'].register()
    gc.freeze()
    gc.enable()


def main():
    """Serves requests; each forked process runs its script."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    preload()
    request = serve(requests)
    # Background shells and nohup start the tests with these signals ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.chdir(request['folder'])
    os.environ.clear()
    os.environ.update(request['environment'])
    sys.argv = request['arguments']
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name='__main__')


if __name__ == '__main__':
    main()
