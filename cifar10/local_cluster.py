"""Starts a cluster of processes on this machine, for trying one out.

    python -m cifar10.local_cluster --workers=2 --ps=1 -- python multi_gpu_train.py --num_gpus=1

Runs the command once a task, with --job_name, --task_index, --worker_hosts and --ps_hosts added: free
ports of 127.0.0.1. Every line of their output begins with the task. Signals are passed on; the first
failure ends all, and its status becomes that of this program.
"""
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from cifar10 import console, signals
from cifar10.cli import flags, program
from cifar10.errors import UsageError

_GRACE = 15  # seconds from the request to end to the end by force
_AGAIN = 1  # seconds between the two signals that ask for it: two at once may arrive as one


def free_addresses(count: int) -> list[str]:
    """Returns so many addresses of this machine that nothing listens at."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(('127.0.0.1', 0))
        return [f'127.0.0.1:{each.getsockname()[1]}' for each in sockets]


def commands(command: Sequence[str], workers: int, ps: int) -> dict[str, list[str]]:
    """Returns {'worker 0': its command, a list of str}: the chief first."""
    addresses = free_addresses(workers + ps)
    hosts = ['--worker_hosts=' + ','.join(addresses[:workers])]
    if ps:
        hosts.append('--ps_hosts=' + ','.join(addresses[workers:]))
    return {f'{job} {i}': [*command, '--job_name=' + job, f'--task_index={i}', *hosts]
            for job, count in (('worker', workers), ('ps', ps)) for i in range(count)}


def run(tasks: dict[str, list[str]]) -> int:
    """Runs the commands of all tasks to their end; returns the status of the first that failed, or 0."""
    processes = {}

    def pass_on(number, frame=None):
        for process in processes.values():
            if process.poll() is None:
                process.send_signal(number)
    for number in signals.ending():
        signal.signal(number, pass_on)
    for name, command in tasks.items():
        # In sessions of their own: a Ctrl-C reaches them once, through us.
        processes[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                           errors='replace', start_new_session=True)
    width, unread = max(map(len, processes)), threading.Event()
    relays = [threading.Thread(target=_relay, args=(f'{name:<{width}} | ', process, unread), daemon=True)
              for name, process in processes.items()]
    for relay in relays:
        relay.start()
    status, failed_at, asked = 0, None, 0
    while None in (statuses := [process.poll() for process in processes.values()]):
        failed = [each for each in statuses if each] or ([1] if unread.is_set() else [])
        if failed and failed_at is None:
            status, failed_at = failed[0], time.monotonic()
        since = time.monotonic() - failed_at if failed_at else 0
        if failed_at and since >= asked * _AGAIN and asked < 2:
            pass_on(signal.SIGTERM)  # twice: a first one alone may wait for a chief that is gone
            asked += 1
        if since > _GRACE:
            pass_on(signal.SIGKILL)
        time.sleep(0.1)
    for relay in relays:
        relay.join(_GRACE)
    status = status or next(filter(None, statuses), 0)
    return 128 - status if status < 0 else status  # as a shell says it: 128 + the number of the signal


def _relay(prefix, process, unread):
    """Prints what a process prints; keeps reading when nobody reads our output any more, or the process would block."""
    for line in process.stdout:
        try:
            if not unread.is_set():
                sys.stdout.write(prefix + line.rstrip('\n') + '\n')
                sys.stdout.flush()
        except BrokenPipeError:
            console.discard(sys.stdout)
            unread.set()


def main() -> None:
    """Reads the flags and runs the cluster."""
    own, command = sys.argv[1:], []
    if '--' in own:
        own, command = own[:own.index('--')], own[own.index('--') + 1:]
    parser = flags.Parser(__doc__.splitlines()[0], prog='local_cluster', usage=(
        'python -m cifar10.local_cluster [--workers=N] [--ps=N] -- COMMAND'))
    parser.add_argument('--workers', type=flags.at_least(1), default=2, metavar='N', help='(default: %(default)s)')
    parser.add_argument('--ps', type=flags.at_least(0), default=0, metavar='N', help='(default: %(default)s)')
    given = parser.parse_args(own)
    if not command:
        raise UsageError('there is no command after --; as: -- python multi_gpu_train.py --num_gpus=1')
    try:
        status = run(commands(command, given.workers, given.ps))
    except (FileNotFoundError, PermissionError) as error:
        raise UsageError(f'{command[0]} cannot be run: {os.strerror(error.errno)}') from error
    if status:
        raise SystemExit(status)


if __name__ == '__main__':
    sys.exit(program.run(main))
