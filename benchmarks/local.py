#!/usr/bin/env python3
"""What `--variable_update=local` gains and costs: speed over slow links, accuracy after equal numbers of images.

    python benchmarks/local.py speed --dataset=shapes --rounds=1
    python benchmarks/local.py classic --data_dir=/tmp/cifar10_data --seeds=3
    python benchmarks/local.py fast --data_dir=/tmp/cifar10_data --seeds=3

`speed` trains in two and four workers whose links are limited, with a global batch of 128, in every mode that spans
machines. Each worker has a network namespace of its own, which takes the rights to make them. All workers share the
cores of this machine. `classic` trains four towers of 32 in one process, `fast` the fast preset with four towers of
128; both compare the test accuracy with that of `replicated`. Prints Markdown tables.
"""
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402
from cifar10.run import metrics  # noqa: E402

_SYNCHRONOUS = ('replicated', None)
_OTHERS = [('parameter_server', None), _SYNCHRONOUS, ('async', None)]
_GLOBAL_BATCH = 128
_MEGABITS = 35  # that an all-reduce between two workers sends over each link
_STEP_SECONDS = 0.06  # about what a step takes without a network
_ACCURACY = {'classic': ['--num_towers=4', '--batch_size=32'],
             'fast': ['--preset=fast', '--num_towers=4', '--batch_size=128']}


@contextlib.contextmanager
def machines(count, megabits):
    """Context with network namespaces on one switch; yields (their names, their addresses).

    Args:
      count: how many namespaces.
      megabits: what the link of each carries in a second, in each direction; 0: as much as the kernel can.
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
        raise harness.Failed(f"no network namespaces here: {getattr(error, 'stderr', error)}") from error


def half_steps(mode, every, megabits, seconds):
    """Returns in how many steps a run takes about so many seconds: whole cycles of `every` steps, at least one."""
    exchange = _MEGABITS / megabits / (every or 1) if megabits and mode != 'async' else 0
    steps = max(round(seconds / (_STEP_SECONDS + exchange)), 2)
    return -(-steps // every) * every if every else steps


def speed(options, workers, megabits, mode, every):
    """Trains in a cluster; returns the images/s of the second half of its steps."""
    half = half_steps(mode, every, megabits, options.seconds)
    if mode == 'async':
        half *= workers  # an update takes the batch of one tower
    with tempfile.TemporaryDirectory() as train_dir, machines(workers, megabits) as (names, addresses):
        command = [sys.executable, *harness.trainer(options, train_dir), '--tower_device=cpu', '--summary_steps=0',
                   f'--batch_size={_GLOBAL_BATCH // workers}', f'--log_frequency={half}',
                   f'--max_steps={2 * half + (10 * workers if mode == "async" else 0)}', f'--save_steps={10 ** 6}',
                   *_mode_flags(mode, every), '--job_name=worker',
                   '--worker_hosts=' + ','.join(f'{address}:2222' for address in addresses)]
        tasks = [subprocess.Popen(['ip', 'netns', 'exec', name, *command, f'--task_index={k}'], cwd=harness.ROOT,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                 for k, name in enumerate(names)]
        try:
            outputs = [task.communicate()[0] for task in tasks]
        finally:  # after an interrupt too
            for task in tasks:
                task.kill()
        if any(task.returncode for task in tasks):
            raise harness.Failed(outputs[0].strip().splitlines()[-1])
        return harness.second_half(train_dir)


def _mode_flags(mode, every):
    return [f'--variable_update={mode}', *([f'--local_steps={every}'] if every else [])]


def _name(mode, every):
    return f"`{mode}`, {every} step{'s' * (every > 1)}" if every else f'`{mode}`'


def speed_lines(options):
    """Yields the lines of a table for each number of workers."""
    modes = [*_OTHERS, *[('local', every) for every in options.steps]]
    cells = [(workers, megabits, *mode) for workers in options.workers for mode in modes for megabits in options.links]
    results = harness.measure(cells, options.rounds, lambda cell: speed(options, *cell))
    for workers in options.workers:
        yield from ['', f'{workers} workers with a tower of {_GLOBAL_BATCH // workers} each, images/s:', '',
                    '| | ' + ' | '.join(f'{link} Mbit/s' if link else 'no limit' for link in options.links) + ' |',
                    '|---|' + '---|' * len(options.links)]
        for mode in modes:
            figures = [harness.spread(results[(workers, link, *mode)]) for link in options.links]
            yield f"| {_name(*mode)} | {' | '.join(figures)} |"
    if options.json:
        harness.write_json(options.json, flags=vars(options), images_per_sec={
            ' '.join(map(str, cell)): figures for cell, figures in results.items()})


def accuracy(options, mode, every, seed):
    """Trains in one process and evaluates the end of the run.

    Returns:
      (the percentage of the test images that the variables get right, that of their moving averages, if there are any).
    """
    length = [f'--epochs={options.epochs}'] if options.what == 'fast' else [f'--max_steps={options.max_steps}']
    with tempfile.TemporaryDirectory() as train_dir, tempfile.TemporaryDirectory() as eval_dir:
        harness.output_of(
            *harness.trainer(options, train_dir), *_ACCURACY[options.what], *length, *_mode_flags(mode, every),
            f'--seed={seed}', '--summary_steps=0', '--tower_device=cpu')
        for use_ema in ('false', 'true')[:2 if options.what == 'classic' else 1]:
            harness.output_of('cifar10_eval.py', '--run_once', f'--checkpoint_dir={train_dir}',
                              f'--eval_dir={eval_dir}', f'--use_ema={use_ema}', '--tower_device=cpu',
                              '--test_time_averaging=false', '--batch_size=500')
        return tuple(100 * record['precision'] for record in metrics.read(eval_dir, metrics.EVAL))


def accuracy_lines(options):
    """Yields the lines of a table of accuracies."""
    modes = [_SYNCHRONOUS, *[('local', every) for every in options.steps]]
    results = {mode: [] for mode in modes}
    for seed in range(options.seeds):
        for mode, figures in results.items():
            figures.append(accuracy(options, *mode, seed))
            percent = ', '.join(f'{figure:.2f}%' for figure in figures[-1])
            print(f'seed {seed}, {_name(*mode)}: {percent}', file=sys.stderr, flush=True)
    columns = ('variables', 'moving averages')[:len(results[_SYNCHRONOUS][0])]
    yield f"| test accuracy, and by how much it differs | {' | '.join(columns)} |"
    yield '|---|' + '---|' * len(columns)
    for mode, figures in results.items():
        cells = []
        for column, expected in zip(zip(*figures), zip(*results[_SYNCHRONOUS])):
            difference = statistics.mean(column) - statistics.mean(expected)
            cells.append(f"{harness.mean_spread(column, 1, '%')}, {difference:+.1f}")
        yield f"| {_name(*mode)} | {' | '.join(cells)} |"
    if options.json:
        harness.write_json(options.json, flags=vars(options), accuracies={
            _name(*mode): figures for mode, figures in results.items()})


def main():
    """Measures what the command asks for and prints the tables."""
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument('what', choices=('speed', *_ACCURACY), help='what to measure')
    parser.add_argument('--steps', type=harness.listed(flags.at_least(1)), default=[1, 8, 64], metavar='N,...',
                        help='values of --local_steps (default: 1,8,64)')
    parser.add_argument('--workers', type=harness.listed(flags.at_least(2)), default=[2, 4], metavar='N,...',
                        help='of `speed`: numbers of workers (default: 2,4)')
    parser.add_argument('--links', type=harness.listed(int), default=[0, 1000, 100, 10], metavar='N,...',
                        help='of `speed`: megabits a second; 0: no limit (default: 0,1000,100,10)')
    parser.add_argument('--seconds', type=float, default=8.0, metavar='N',
                        help='of `speed`: about so many are measured in each run (default: %(default)s)')
    parser.add_argument('--rounds', type=flags.at_least(1), default=1, metavar='N',
                        help='of `speed`: how often everything is measured (default: %(default)s)')
    parser.add_argument('--seeds', type=flags.at_least(1), default=3, metavar='N',
                        help='runs of each value (default: %(default)s)')
    parser.add_argument('--max_steps', type=flags.at_least(1), default=1024, metavar='N',
                        help='of `classic`: length of a run, in steps of 128 images (default: %(default)s)')
    parser.add_argument('--epochs', type=float, default=2.75, metavar='N',
                        help='of `fast`: length of a run (default: %(default)s)')
    options = parser.parse_args()
    harness.check(options)
    for line in speed_lines(options) if options.what == 'speed' else accuracy_lines(options):
        print(line, flush=True)


if __name__ == '__main__':
    sys.exit(program.run(main))
