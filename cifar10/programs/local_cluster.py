"""Starts a cluster of processes on this machine, for testing.

    cifar10-local-cluster --workers=2 --ps=1 -- cifar10-train --num_gpus=1

Runs the command once for each task and adds --job_name, --task_index, --worker_hosts and --ps_hosts, with
free ports of 127.0.0.1. Every line of output starts with the name of its task. Signals are forwarded. If a
task fails, this program ends the other tasks and exits with the status of the first failed task. With
--restarts, it first restarts a task that ends with status 75, because the task was stuck or lost a peer.
"""
import argparse
import contextlib
import functools
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from cifar10.base import console, signals
from cifar10.base.errors import TemporaryError, UsageError
from cifar10.programs import flags, program

_TICK_SECS = 0.1  # between two polls of the tasks
_GRACE = 150  # ticks from the first SIGTERM to SIGKILL
_REPEAT = 10  # ticks between two signals: two at once may arrive as one
_PORTS = range(10240, 20000)  # between the ports of known services and of Slurm's steps


@contextlib.contextmanager
def free_addresses(count: int) -> Iterator[list[str]]:
    """Yields `count` addresses of this machine, 'host:port', with unused ports.

    A task listens only seconds later. Until then no connection takes its port, because Linux assigns ports from 32768,
    and no concurrent call of this function takes it, because the context holds a lock on each port.
    """
    addresses: list[str] = []
    with contextlib.ExitStack() as locks:
        for port in random.sample(_PORTS, len(_PORTS)):
            if len(addresses) == count:
                break
            lock = locks.enter_context(socket.socket(socket.AF_UNIX))
            with contextlib.suppress(OSError), socket.socket() as probe:
                lock.bind(f'\0cifar10 port {port}')  # an abstract name, not a file: free when this process ends
                probe.bind(('', port))
                addresses.append(f'127.0.0.1:{port}')
        yield addresses


def commands(command: Sequence[str], addresses: Sequence[str], workers: int) -> dict[str, list[str]]:
    """Returns the command line of each task by its name: {'worker 0': ['python', ...]}, the chief first.

    The first `workers` addresses, 'host:port', belong to workers, and the rest to parameter servers.
    """
    hosts = ['--worker_hosts=' + ','.join(addresses[:workers])]
    if addresses[workers:]:
        hosts.append('--ps_hosts=' + ','.join(addresses[workers:]))
    return {f'{job} {i}': [*command, '--job_name=' + job, f'--task_index={i}', *hosts]
            for job, count in (('worker', workers), ('ps', len(addresses) - workers)) for i in range(count)}


def run_tasks(tasks: dict[str, list[str]], restarts: int = 0) -> int:
    """Runs the commands of all tasks to completion; returns the status of the first failed task, or 0.

    Args:
      tasks: the command lines, as `commands` returns them.
      restarts: the number of restarts of each task after it ends with the status of a TemporaryError.
    """
    received: list[int] = []  # signals
    with signals.caught(received.append):
        local = _Tasks(tasks, restarts)
        while local.tick(received):
            time.sleep(_TICK_SECS)
    local.join()
    # Killed by a signal: like a shell, 128 + its number.
    return local.status if local.status >= 0 else 128 - local.status


class _Tasks:
    """Starts the processes of the tasks, and supervises them.

    Attributes:
      status: the status of the first failed task; 0 if none has failed.
    """

    def __init__(self, commands, restarts):
        self.status = 0
        self._commands = commands
        self._width = max(map(len, commands))
        self._restarts = dict.fromkeys(commands, restarts)  # the remaining restarts
        self._relays = []
        self._is_ending = False  # after a failure or a signal nothing is started
        self._failing = 0  # ticks since the first failure
        self._processes = {name: self._started(name) for name in commands}

    def _started(self, name):
        # In a separate session, a task does not get a Ctrl-C from the terminal, but only once, from this program.
        process = subprocess.Popen(self._commands[name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors='replace', start_new_session=True)
        relay = threading.Thread(target=self._relay, args=(name, process.stdout), daemon=True)
        relay.start()
        self._relays.append(relay)
        return process

    def tick(self, received):
        """Forwards signals, restarts tasks, and ends all tasks after a failure; returns whether any task runs."""
        while received:
            self._is_ending = True
            self._send(received.pop(0))
        statuses = {name: process.poll() for name, process in self._processes.items()}
        for name, status in statuses.items():
            if status == TemporaryError.status and self._restarts[name] and not self._is_ending:
                self._restarts[name] -= 1
                self._write(name, f'ended with status {status}; starts again (restarts left: {self._restarts[name]})')
                with contextlib.suppress(OSError):  # the command is gone, so the task has failed
                    self._processes[name] = self._started(name)
                    statuses[name] = None
        failures = {name: status for name, status in statuses.items() if status}
        is_running = None in statuses.values()
        if failures or console.Output.current.is_closed:
            self.status = self.status or next(iter(failures.values()), program.UNREAD)
            if is_running:
                self._end(failures)
        return is_running

    def _end(self, failures):
        """Ends all tasks, and prints the failure that caused it; ignores the statuses of ended tasks."""
        for name, status in {} if self._is_ending else failures.items():
            how = f'killed by {signal.Signals(-status).name}' if status < 0 else f'ended with status {status}'
            self._write(name, f'{how}; ending the others')
        self._is_ending = True
        if self._failing % _REPEAT == 0:  # after the first signal alone, a task may wait for a chief that is gone
            self._send(signal.SIGTERM if self._failing < _GRACE else signal.SIGKILL)
        self._failing += 1

    def _send(self, number):
        for process in self._processes.values():
            process.send_signal(number)  # unless it has ended

    def join(self):
        """Waits until all output of the tasks is printed."""
        for relay in self._relays:
            relay.join(_GRACE * _TICK_SECS)

    def _relay(self, name, lines):
        """Prints the lines of a process; keeps reading when our output is closed, or the process would block."""
        for line in lines:
            self._write(name, line.rstrip('\n'))

    def _write(self, name, line):
        if not console.Output.current.is_closed:
            with console.reader_may_leave():
                sys.stdout.write(f'{name:<{self._width}} | {console.printable(line)}\n')
                sys.stdout.flush()


def main() -> int:
    """Reads the flags and runs the cluster."""
    parser = flags.Parser(__doc__, usage='%(prog)s [--workers=N] [--ps=N] [--restarts=N] -- COMMAND')
    parser.add_argument('--workers', type=flags.at_least(1), default=2, metavar='N',
                        help='number of workers (default: %(default)s)')
    parser.add_argument('--ps', type=flags.at_least(0), default=0, metavar='N',
                        help='number of parameter servers (default: %(default)s)')
    parser.add_argument('--restarts', type=flags.at_least(0), default=0, metavar='N',
                        help=f'maximum number of restarts of a task that ends with status {TemporaryError.status} '
                             '(default: %(default)s)')
    parser.add_argument('command', nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    separator, *command = options.command or ['--']
    if separator != '--' or not command:
        raise UsageError('no command is given; put it after --, as in: -- cifar10-train --num_gpus=1')
    try:
        with free_addresses(options.workers + options.ps) as addresses:
            return run_tasks(commands(command, addresses, options.workers), options.restarts)
    except (FileNotFoundError, PermissionError) as error:
        remedy = f'give: -- python {command[0]}' if command[0].endswith('.py') else 'give a program that can be run'
        raise UsageError(f'{command[0]} cannot be run: {error.strerror}; {remedy}') from error


run = functools.partial(program.run, main, to_end=True)
