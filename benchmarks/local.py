#!/usr/bin/env python3
"""Measures the gain of `--variable_update=local`: the speed of workers over slow links, in every mode.

    python benchmarks/local.py --dataset=shapes

Trains in two and four workers over limited links, with a global batch of 128, in every mode that spans machines. Each
worker has its own network namespace, which requires permission to create namespaces. All workers share the cores of
this machine. Prints Markdown tables of images/s.
"""
import contextlib
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10.programs import flags, local_cluster, program  # noqa: E402

_MODES = [('parameter_server', None), ('replicated', None), ('async', None), ('local', 8), ('local', 64)]
_GLOBAL_BATCH = 128
_MEGABITS = 35  # traffic per link of an all-reduce between two workers
_STEP_SECONDS = 0.06  # approximate duration of a step without a network


@contextlib.contextmanager
def machines(count, megabits):
    """Context with network namespaces on one switch; yields (names, addresses).

    Args:
      count: number of namespaces.
      megabits: maximum rate of each link in Mbit/s, in each direction; 0: no limit.
    """
    switch, *names = [f'local{os.getpid()}-{k}' for k in range(count + 1)]
    addresses = [f'10.97.0.{k + 1}' for k in range(count)]
    try:
        for name in (switch, *names):
            _run('ip', 'netns', 'add', name)
        _run('ip', '-n', switch, 'link', 'add', 'bridge', 'type', 'bridge')
        _run('ip', '-n', switch, 'link', 'set', 'bridge', 'up')
        for name, address in zip(names, addresses):
            _run('ip', 'link', 'add', 'port', 'netns', name, 'type', 'veth', 'peer', name, 'netns', switch)
            _run('ip', '-n', switch, 'link', 'set', name, 'master', 'bridge', 'up')
            _run('ip', '-n', name, 'addr', 'add', f'{address}/24', 'dev', 'port')
            for device in ('port', 'lo'):
                _run('ip', '-n', name, 'link', 'set', device, 'up')
            for place, device in ((name, 'port'), (switch, name)) if megabits else ():
                _run('ip', 'netns', 'exec', place, 'tc', 'qdisc', 'replace', 'dev', device, 'root', 'tbf', 'rate',
                     f'{megabits}mbit', 'burst', '256kb', 'latency', '200ms')
        yield names, addresses
    finally:
        for name in (switch, *names):
            subprocess.run(['ip', 'netns', 'delete', name], capture_output=True)


def _run(*command):
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        raise harness.Failed(f"cannot create network namespaces ({getattr(error, 'stderr', error)}); run it as "
                             'root') from error


def half_steps(mode, every, megabits, seconds):
    """Returns the number of steps in about `seconds`, rounded up to whole cycles of `every` steps."""
    exchange = _MEGABITS / megabits / (every or 1) if megabits and mode != 'async' else 0
    steps = max(round(seconds / (_STEP_SECONDS + exchange)), 2)
    return -(-steps // every) * every if every else steps


def speed(options, workers, megabits, mode, every):
    """Trains in a cluster; returns the images/s of the second half of its steps."""
    half = half_steps(mode, every, megabits, options.seconds)
    if mode == 'async':
        half *= workers  # an update consumes the batch of one tower
    with tempfile.TemporaryDirectory() as train_dir, machines(workers, megabits) as (names, addresses):
        command = [sys.executable, *harness.trainer(options, train_dir), '--tower_device=cpu', '--summary_steps=0',
                   f'--batch_size={_GLOBAL_BATCH // workers}', f'--log_frequency={half}',
                   f'--max_steps={2 * half + (10 * workers if mode == "async" else 0)}', f'--save_steps={10 ** 6}',
                   f'--variable_update={mode}', *([f'--local_steps={every}'] if every else [])]
        commands = local_cluster.commands(command, [f'{address}:2222' for address in addresses], workers)
        tasks = [subprocess.Popen(['ip', 'netns', 'exec', name, *task], cwd=harness.ROOT, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
                 for name, task in zip(names, commands.values())]
        try:
            outputs = [task.communicate()[0] for task in tasks]
        finally:  # also after an interrupt
            for task in tasks:
                task.kill()
        if any(task.returncode for task in tasks):
            raise harness.Failed(outputs[0].strip().splitlines()[-1])
        return harness.second_half(train_dir)


def _name(mode, every):
    return f"`{mode}`, {every} step{'s' * (every > 1)}" if every else f'`{mode}`'


def tables(options, results):
    """Returns the lines of a Markdown table per number of workers, from {(workers, link, mode, steps): images/s}."""
    lines = []
    for workers in options.workers:
        rows = [[_name(*mode), *(harness.spread(results[(workers, link, *mode)]) for link in options.links)]
                for mode in _MODES]
        links = [f'{link} Mbit/s' if link else 'no limit' for link in options.links]
        lines += ['', f'{workers} workers with a tower of {_GLOBAL_BATCH // workers} each, images/s:', '',
                  *harness.table(['', *links], rows)]
    return lines[1:]


def main():
    """Measures all cells and reports them."""
    parser = harness.parser(__doc__, rounds=1)
    parser.add_argument('--workers', type=harness.listed(flags.at_least(2)), default=[2, 4], metavar='N,...',
                        help='numbers of workers (default: 2,4)')
    parser.add_argument('--links', type=harness.listed(int), default=[0, 1000, 100, 10], metavar='N,...',
                        help='Mbit/s; 0: no limit (default: 0,1000,100,10)')
    parser.add_argument('--seconds', type=float, default=8.0, metavar='N',
                        help='approximate measured time of each run (default: %(default)s)')
    options = parser.parse_args()
    harness.check(options)
    cells = [(workers, link, *mode) for workers in options.workers for mode in _MODES for link in options.links]
    harness.measure(options, cells, lambda cell, _: speed(options, *cell), lambda results: tables(options, results))


if __name__ == '__main__':
    sys.exit(program.run(main))
