#!/usr/bin/env python3
"""Speed of every update mode over the number of towers: strong and weak scaling.

    python benchmarks/scaling.py --data_dir=/tmp/cifar10_data --rounds=3
    python benchmarks/scaling.py --data_dir=/tmp/cifar10_data --rounds=3 --batch_size=128

Each cell runs the trainer in a process of its own; all cells are measured in turn, for several rounds. Prints
medians with the lowest and highest figures.

Strong scaling: the towers share --global_batch images. Prints images/s, and the ratio to `parameter_server`
with as many towers in the same round. Weak scaling: each tower has --batch_size images. Prints seconds per
batch and images/s of each mode, from one tower up.

A cell that fails is reported with its error and the others continue; the exit status is then 1.
"""
import os
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10.base.errors import UsageError  # noqa: E402
from cifar10.base.registry import UPDATE_MODES  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402
from cifar10.settings.training import TOWER_DEVICES  # noqa: E402

_CLUSTER = ', a process each'  # suffix of a row's mode: each tower runs in a process of its own


def measure(options, row, towers):
    """Trains once, in one process or one per tower; returns the images/s of the second half of its steps."""
    mode = row.removesuffix(_CLUSTER)
    processes = towers if row.endswith(_CLUSTER) else 1
    cluster = ['-m', 'cifar10', 'local_cluster', f'--workers={processes}', '--', sys.executable]
    updates = options.steps * (towers if mode == 'async' else 1)  # an asynchronous update takes one tower's batch
    spare = 10 * towers  # another thread than the one that reports may take the last steps
    with tempfile.TemporaryDirectory() as train_dir:
        harness.output_of(
            *(cluster if processes > 1 else []), *harness.trainer(options, train_dir), f'--variable_update={mode}',
            f'--num_gpus={towers // processes}', f'--batch_size={step_images(options, towers) // towers}',
            f'--max_steps={updates + spare}', f'--log_frequency={updates // 2}',
            f'--tower_device={options.tower_device}')
        return harness.second_half(train_dir)


def step_images(options, towers):
    """Returns how many images all towers together take in one step."""
    return options.batch_size * towers if options.batch_size else options.global_batch


def step_seconds(options, results):
    """Returns {(row, towers): [seconds in which every tower takes one batch]}.

    This is the duration of a synchronous step, not divided by the number of towers. It is computed from the
    rate because an asynchronous step takes one tower's batch only, and because the trainer prints
    milliseconds only.

    Args:
      results: {(row, towers): [images/s]}.
    """
    return {(row, towers): [None if rate is None else step_images(options, towers) / rate for rate in rates]
            for (row, towers), rates in results.items()}


def weak_tables(options, results, modes, counts):
    """Returns the lines of a Markdown table for each mode: seconds per batch and images/s by tower count."""
    seconds = step_seconds(options, results)
    lines = []
    for mode in modes:
        rows = [[n, harness.spread(seconds[mode, n], 3), harness.spread(results[mode, n])] for n in counts]
        lines += ['', f'{mode}, {options.batch_size} images a tower:', '',
                  *harness.table(['towers', 'sec/batch', 'images/s'], rows)]
    return lines[1:]


def strong_table(results, modes, counts):
    """Returns the lines of a Markdown table of results {(mode, towers): [images/s]}."""
    def cell(mode, n):
        ratio = harness.ratio(results[mode, n], results.get((next(iter(UPDATE_MODES)), n), []))
        return harness.spread(results[mode, n]) + ('' if ratio is None else f' ({ratio:.2f})')
    return harness.table(['images/s (ratio)', *(f"{n} tower{'s' * (n > 1)}" for n in counts)],
                         [[mode, *(cell(mode, n) for n in counts)] for mode in modes])


def draw(path, results, modes, counts, label):
    """Draws the medians to a PNG; `label` is the label of the axis of tower counts."""
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for i, mode in enumerate(modes):
        places = [j + (i - len(modes) / 2 + 0.5) / (len(modes) + 1) for j in range(len(counts))]
        valid = [[rate for rate in results[mode, n] if rate is not None] for n in counts]
        medians = [statistics.median(rates) if rates else 0 for rates in valid]
        axes.bar(places, medians, 1 / (len(modes) + 1), label=mode)
    axes.set_xticks(range(len(counts)), [f'{n}' for n in counts])
    axes.set_xlabel(label)
    axes.set_ylabel('images/s')
    axes.legend(ncol=len(modes), loc='upper center', bbox_to_anchor=(0.5, 1.14))
    figure.savefig(path, dpi=120, bbox_inches='tight', format='png')


def parse():
    """Returns the options of the command line."""
    parser = harness.parser(__doc__.splitlines()[0], rounds=3)
    parser.add_argument('--tower_device', default='auto', choices=TOWER_DEVICES,
                        help='kind of device that the towers run on (default: %(default)s)')
    parser.add_argument('--modes', type=harness.listed(str, UPDATE_MODES), default=list(UPDATE_MODES),
                        metavar='MODE,...', help='update modes (default: all)')
    parser.add_argument('--towers', type=harness.listed(flags.at_least(1)), default=[1, 2, 4, 8], metavar='N,...',
                        help='tower counts (default: 1,2,4,8)')
    parser.add_argument('--processes', action='store_true',
                        help='also measure a cluster on this machine, with a worker process for each tower')
    batch = parser.add_mutually_exclusive_group()
    batch.add_argument('--global_batch', type=flags.at_least(1), metavar='N',
                       help='images in one step, shared by the towers (default: 128)')
    batch.add_argument('--batch_size', type=flags.at_least(1), metavar='N',
                       help='images of one tower in one step, for weak scaling; prints seconds per batch')
    parser.add_argument('--steps', type=flags.at_least(2), default=100, metavar='N',
                        help='steps of all towers in each run (default: %(default)s)')
    parser.add_argument('--plot', metavar='FILE', help='PNG file to which the medians are drawn')
    options = parser.parse_args()
    if options.batch_size:
        options.towers = sorted({1, *options.towers})  # one tower is what the others are compared to
        return options
    options.global_batch = options.global_batch or 128
    for n in options.towers:
        if options.global_batch % n:
            raise UsageError(f'--global_batch={options.global_batch} cannot be shared by {n} towers; use a multiple')
    return options


def main():
    """Measures all cells, reports them and draws a picture."""
    options = parse()
    harness.check(options)
    rows = list(options.modes)
    if options.processes:
        rows += [mode + _CLUSTER for mode in options.modes if mode != 'mirrored']
    cells = [(row, n) for n in options.towers for row in rows]
    results = harness.measure(cells, options.rounds, lambda cell: measure(options, *cell))
    if options.batch_size:
        lines = weak_tables(options, results, rows, options.towers)
    else:
        lines = strong_table(results, rows, options.towers)
    harness.report(options, lines, images_per_sec=results, sec_per_batch=step_seconds(options, results))
    if options.plot:
        label = 'towers, sharing the same global batch'
        if options.batch_size:
            label = f'towers, each with a batch of {options.batch_size}'
        draw(options.plot, results, rows, options.towers, label)
    harness.end(results)


if __name__ == '__main__':
    sys.exit(program.run(main))
