"""Starts a cluster of processes on this machine, for testing.

    python -m cifar10.local_cluster --workers=2 --ps=1 -- python multi_gpu_train.py --num_gpus=1

Runs the command once for each task and adds --job_name, --task_index, --worker_hosts and --ps_hosts, with
free ports of 127.0.0.1. Every line of output starts with the name of its task. Signals are passed on. If a
task fails, the others are ended, and this program exits with the status of the first that failed.
"""
import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from cifar10 import console, signals
from cifar10.cli import flags, program
from cifar10.errors import UsageError

_GRACE_SECS = 15  # from the first SIGTERM to SIGKILL
_REPEAT_SECS = 1  # between the two SIGTERMs: two at once may arrive as one
_PORTS = range(10240, 20000)  # below are those of known services, above those of slurm.py
_SIGTERMS = 2  # after the first alone, a task may wait for a chief that is gone


@contextlib.contextmanager
def free_addresses(count: int) -> Iterator[list[str]]:
    """Context with `count` addresses of this machine, 'host:port', at which nothing listens.

    A task listens only seconds after its port was chosen, or again after it was killed. No connection can take the port
    in between, because Linux takes the ports of connections from another range, and no other call of this function,
    because a lock on each port is held until the context ends.
    """
    with open('/proc/sys/net/ipv4/ip_local_port_range') as line:
        first, last = map(int, line.read().split())
    ports = [port for port in _PORTS if not first <= port <= last] or _PORTS
    with contextlib.ExitStack() as locks:
        free = (port for port in random.sample(ports, len(ports)) if _reserve(port, locks))
        yield [f'127.0.0.1:{port}' for port in itertools.islice(free, count)]


def _reserve(port, locks):
    """Enters the lock on a port into an ExitStack; returns whether nobody else has it, nor listens at the port."""
    lock = socket.socket(socket.AF_UNIX)
    try:
        # The name is not that of a file: it is free again when this process ends, whatever ends it.
        lock.bind(f'\0cifar10 port {port}')
        with socket.socket() as probe:
            probe.bind(('', port))
    except OSError:
        lock.close()
        return False
    locks.enter_context(lock)
    return True


def commands(command: Sequence[str], addresses: Sequence[str], workers: int) -> dict[str, list[str]]:
    """Returns the command line of each task by its name: {'worker 0': ['python', ...]}, the chief first.

    Args:
      command: the command line without the flags of a cluster.
      addresses: the addresses of the tasks, 'host:port', those of the workers first.
      workers: how many of the tasks are workers; the others are parameter servers.
    """
    hosts = ['--worker_hosts=' + ','.join(addresses[:workers])]
    if addresses[workers:]:
        hosts.append('--ps_hosts=' + ','.join(addresses[workers:]))
    return {f'{job} {i}': [*command, '--job_name=' + job, f'--task_index={i}', *hosts]
            for job, count in (('worker', workers), ('ps', len(addresses) - workers)) for i in range(count)}


def run(tasks: dict[str, list[str]]) -> int:
    """Runs the commands of all tasks to their end; returns the status of the first that failed, or 0.

    Args:
      tasks: the command lines, as `commands` returns them.
    """
    processes = {}

    def pass_on(number, frame=None):
        for process in processes.values():
            if process.poll() is None:
                process.send_signal(number)
    for number in signals.termination_signals():
        signal.signal(number, pass_on)
    for name, command in tasks.items():
        # In a session of its own, a task does not get a Ctrl-C from the terminal, but once, through us.
        processes[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                           errors='replace', start_new_session=True)
    width = max(len(name) for name in processes)
    unread = threading.Event()  # set once nobody reads our output any more
    relays = [threading.Thread(target=_relay, args=(f'{name:<{width}} | ', process, unread), daemon=True)
              for name, process in processes.items()]
    for relay in relays:
        relay.start()
    status = 0
    failed_at = None
    sigterms = 0
    while None in (statuses := [process.poll() for process in processes.values()]):
        failures = [code for code in statuses if code]
        if unread.is_set():
            failures.append(1)
        if failures and failed_at is None:
            status = failures[0]
            failed_at = time.monotonic()
        if failed_at is not None:
            elapsed = time.monotonic() - failed_at
            if sigterms < _SIGTERMS and elapsed >= sigterms * _REPEAT_SECS:
                pass_on(signal.SIGTERM)
                sigterms += 1
            if elapsed > _GRACE_SECS:
                pass_on(signal.SIGKILL)
        time.sleep(0.1)
    for relay in relays:
        relay.join(_GRACE_SECS)
    if not status:  # the last task to end may be the first that failed
        status = next((code for code in statuses if code), 0)
    if status < 0:  # killed by a signal: like a shell, return 128 + its number
        return 128 - status
    return status


def _relay(prefix, process, unread):
    """Prints the lines of a process; reads on when nobody reads ours, because the process would block."""
    for line in process.stdout:
        if not unread.is_set():
            with console.reader_may_leave(unread.set):
                sys.stdout.write(prefix + console.printable(line.rstrip('\n')) + '\n')
                sys.stdout.flush()


def main() -> None:
    """Reads the flags and runs the cluster."""
    arguments = sys.argv[1:]
    command = []
    if '--' in arguments:
        separator = arguments.index('--')
        command = arguments[separator + 1:]
        arguments = arguments[:separator]
    parser = flags.Parser(__doc__.splitlines()[0], prog='local_cluster', usage=(
        'python -m cifar10.local_cluster [--workers=N] [--ps=N] -- COMMAND'))
    parser.add_argument('--workers', type=flags.at_least(1), default=2, metavar='N',
                        help='number of workers (default: %(default)s)')
    parser.add_argument('--ps', type=flags.at_least(0), default=0, metavar='N',
                        help='number of parameter servers (default: %(default)s)')
    options = parser.parse_args(arguments)
    if not command:
        raise UsageError('there is no command after --; for example: -- python multi_gpu_train.py --num_gpus=1')
    try:
        with free_addresses(options.workers + options.ps) as addresses:
            status = run(commands(command, addresses, options.workers))
    except (FileNotFoundError, PermissionError) as error:
        raise UsageError(f'{command[0]} cannot be run: {os.strerror(error.errno)}') from error
    if status:
        raise SystemExit(status)


if __name__ == '__main__':
    sys.exit(program.run(main))
