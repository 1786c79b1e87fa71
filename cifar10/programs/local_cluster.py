"""Starts a cluster of processes on this machine, for testing.

    cifar10-local-cluster --workers=2 --ps=1 -- cifar10-train --num_gpus=1

Runs the command once for each task and adds --job_name, --task_index, --worker_hosts and --ps_hosts, with
free ports of 127.0.0.1. Every line of output starts with the name of its task. Signals are passed on. If a
task fails, the others are ended, and this program exits with the status of the first that failed. With
--restarts, a task that was stuck or has lost another is started again first, and with it those that it waited for.
"""
import argparse
import contextlib
import functools
import os
import random
import re
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

_TICK_SECS = 0.1  # between two looks at the tasks
_GRACE = 150  # ticks from the first SIGTERM to SIGKILL
_REPEAT = 10  # ticks between two signals: two at once may arrive as one
_FIRST_DELAY_SECS = 1  # before a task starts again
_STUCK = re.compile(r'stuck +(\d+) s ')
_SILENT = re.compile(r'(\w+ \d+) \(\S+\) does not answer')
_PORTS = range(10240, 20000)  # below are those of known services, above those of slurm.py


@contextlib.contextmanager
def free_addresses(count: int) -> Iterator[list[str]]:
    """Context with `count` addresses of this machine, 'host:port', at which nothing listens.

    A task listens only seconds later. Until then no connection takes its port, because Linux takes those from 32768 on,
    and no other call of this function, because a lock on each port is held until the context ends.
    """
    addresses = []
    with contextlib.ExitStack() as locks:
        for port in random.sample(_PORTS, len(_PORTS)):
            if len(addresses) == count:
                break
            lock = locks.enter_context(socket.socket(socket.AF_UNIX))
            with contextlib.suppress(OSError), socket.socket() as probe:
                lock.bind(f'\0cifar10 port {port}')  # not the name of a file: free again when this process ends
                probe.bind(('', port))
                addresses.append(f'127.0.0.1:{port}')
        yield addresses


def commands(command: Sequence[str], addresses: Sequence[str], workers: int) -> dict[str, list[str]]:
    """Returns the command line of each task by its name: {'worker 0': ['python', ...]}, the chief first.

    The first `workers` of the addresses, 'host:port', are those of workers, the others of parameter servers.
    """
    hosts = ['--worker_hosts=' + ','.join(addresses[:workers])]
    if addresses[workers:]:
        hosts.append('--ps_hosts=' + ','.join(addresses[workers:]))
    return {f'{job} {i}': [*command, '--job_name=' + job, f'--task_index={i}', *hosts]
            for job, count in (('worker', workers), ('ps', len(addresses) - workers)) for i in range(count)}


def run_tasks(tasks: dict[str, list[str]], restarts: int = 0) -> int:
    """Runs the commands of all tasks to their end; returns the status of the first that failed, or 0.

    Args:
      tasks: the command lines, as `commands` returns them.
      restarts: how often each is started again after it ended with the status of a TemporaryError, each time after
        twice the delay.
    """
    local = _Tasks(tasks, restarts)
    for number in signals.termination_signals():
        signal.signal(number, local.stop)
    for name in tasks:
        local.start(name)
    status = 0
    ticks = 0  # since the first failure
    while None in (statuses := local.statuses()).values():
        failures = {name: failure for name, failure in statuses.items() if failure}
        if failures or local.unread.is_set():
            if not status:
                local.tell(failures)
                status = next(iter(failures.values()), program.UNREAD)
            if ticks % _REPEAT == 0:  # after the first signal alone, a task may wait for a chief that is gone
                local.stop(signal.SIGTERM if ticks < _GRACE else signal.SIGKILL)
            ticks += 1
        time.sleep(_TICK_SECS)
    local.join()
    status = status or next(filter(None, statuses.values()), 0)  # the last task to end may be the first that failed
    return status if status >= 0 else 128 - status  # killed by a signal: like a shell, 128 + its number


class _Tasks:
    """The processes of the tasks.

    Attributes:
      unread: an event, set once nobody reads our output any more.
    """

    def __init__(self, commands, restarts):
        self.unread = threading.Event()
        self._restarts_left = dict.fromkeys(commands, restarts)
        self._commands = commands
        self._width = max(map(len, commands))
        self._processes = {}
        self._began = {}  # the moments at which they started
        self._silent = {}  # tasks of which others say that they do not answer, and since which moment
        self._relays = []
        self._delay = dict.fromkeys(commands, _FIRST_DELAY_SECS)
        self._due = {}  # the moments at which tasks start again
        self._is_ending = False

    def start(self, name):
        """Starts a task."""
        # In a session of its own, a task does not get a Ctrl-C from the terminal, but once, through us.
        process = subprocess.Popen(self._commands[name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors='replace', start_new_session=True)
        self._processes[name] = process
        self._began[name] = time.monotonic()
        self._relays.append(threading.Thread(target=self._relay, args=(name, process), daemon=True))
        self._relays[-1].start()

    def stop(self, number, frame=None):
        """Passes a signal on; from now on, nothing is started again."""
        del frame
        self._is_ending = True
        self._restarts_left = dict.fromkeys(self._commands, 0)
        self._due = {}
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(number)

    def tell(self, failures):
        """Says which tasks have failed, by their names and statuses, unless they were told to end."""
        for name, status in {} if self._is_ending else failures.items():
            how = f'killed by {signal.Signals(-status).name}' if status < 0 else f'ended with status {status}'
            self._write(name, f'{how}; ending the others')

    def statuses(self):
        """Returns the tasks' statuses by name, None of those that run or will run; starts those again that are due."""
        statuses = {name: process.poll() for name, process in self._processes.items()}  # asked once: one may end now
        for name, status in statuses.items():
            if status == TemporaryError.status and name not in self._due and self._restarts_left[name] > 0:
                self._plan_restart(name, f'ended with status {TemporaryError.status}')
        while self._silent:
            name, since = self._silent.popitem()
            process = self._processes.get(name)
            if process is None or name in self._due or self._began[name] > since:
                continue  # it has no such task, or another process by now
            if process.poll() is None and self._restarts_left[name] > 0:
                self._plan_restart(name, 'does not answer, so it is killed')
                process.kill()
        statuses.update(dict.fromkeys(self._due))
        for name, moment in list(self._due.items()):
            # One that was killed has its port until it has ended, which the kernel may delay; a signal empties `_due`.
            if time.monotonic() > moment and self._processes[name].poll() is not None and self._due.pop(name, None):
                self.start(name)
        return statuses

    def _plan_restart(self, name, why):
        """Lets a task start again after a delay, and says why."""
        self._restarts_left[name] -= 1
        self._due[name] = time.monotonic() + self._delay[name]
        self._write(name, f'{why}; starts again in {self._delay[name]} s (restarts left: {self._restarts_left[name]})')
        self._delay[name] *= 2

    def join(self):
        """Waits until all that the tasks have written is written."""
        for relay in self._relays:
            relay.join(_GRACE * _TICK_SECS)

    def _relay(self, name, process):
        """Prints the lines of a process; reads on when nobody reads ours, because the process would block."""
        for line in process.stdout:
            if stuck := _STUCK.match(line):
                self._silent.update(dict.fromkeys(_SILENT.findall(line), time.monotonic() - int(stuck[1])))
            self._write(name, line.rstrip('\n'))

    def _write(self, name, line):
        if not self.unread.is_set():
            with console.reader_may_leave(self.unread.set):
                sys.stdout.write(f'{name:<{self._width}} | {console.printable(line)}\n')
                sys.stdout.flush()


def main() -> int:
    """Reads the flags and runs the cluster."""
    arguments = sys.argv[1:]
    command = []
    if '--' in arguments:
        separator = arguments.index('--')
        command = arguments[separator + 1:]
        arguments = arguments[:separator]
    parser = flags.Parser(__doc__, usage='%(prog)s [--workers=N] [--ps=N] [--restarts=N] -- COMMAND')
    parser.add_argument('--workers', type=flags.at_least(1), default=2, metavar='N',
                        help='number of workers (default: %(default)s)')
    parser.add_argument('--ps', type=flags.at_least(0), default=0, metavar='N',
                        help='number of parameter servers (default: %(default)s)')
    parser.add_argument('--restarts', type=flags.at_least(0), default=0, metavar='N',
                        help=f'how often to restart a task that ends with status {TemporaryError.status}, because it '
                             'was stuck or has lost another (default: %(default)s)')
    parser.add_argument('before', nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.before or not command:
        raise UsageError('there is no command; put -- before it, as in: -- cifar10-train --num_gpus=1')
    try:
        with free_addresses(options.workers + options.ps) as addresses:
            status = run_tasks(commands(command, addresses, options.workers), options.restarts)
    except (FileNotFoundError, PermissionError) as error:
        is_script = command[0].endswith('.py') and os.path.isfile(command[0])
        remedy = f'; give: -- python {command[0]}' if is_script else ''
        raise UsageError(f'{command[0]} cannot be run: {os.strerror(error.errno)}{remedy}') from error
    return status


run = functools.partial(program.run, main)
