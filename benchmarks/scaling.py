#!/usr/bin/env python3
"""Speed of every update mode over tower counts, with the same images in flight or the same batch a tower.

    python benchmarks/scaling.py --data_dir=/tmp/cifar10_data --rounds=3
    python benchmarks/scaling.py --data_dir=/tmp/cifar10_data --rounds=3 --batch_size=128

Runs the trainer as a process for each cell, all cells in turn, several rounds; prints medians with the
lowest and highest. The towers share --global_batch images (strong scaling): images/s, and each cell's ratio
to `parameter_server` with as many towers in the same round. Or each tower has --batch_size images (weak
scaling): seconds a batch and images/s of each mode, from one tower on. A cell that fails is reported with
its error, and the others go on; the status is then 1.
"""
import os
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10.cli import flags, program  # noqa: E402
from cifar10.errors import UsageError  # noqa: E402
from cifar10.registry import UPDATE_MODES  # noqa: E402
from cifar10.settings.training import TOWER_DEVICES  # noqa: E402

_CLUSTER = ', a process each'  # after the mode of a row


def measure(given, row, towers):
    """Runs one training, as a process or as one a tower; returns its images/s in the second half of its steps.

    Raises:
      harness.Failed: it failed.
    """
    mode, processes = row.removesuffix(_CLUSTER), towers if row.endswith(_CLUSTER) else 1
    cluster = ['-m', 'cifar10.local_cluster', f'--workers={processes}', '--', sys.executable]
    updates = given.steps * (towers if mode == 'async' else 1)  # an asynchronous update is one tower's
    spare = 10 * towers  # the thread that reports may not be the one that takes the last
    with tempfile.TemporaryDirectory() as train_dir:
        harness.output_of(
            *(cluster if processes > 1 else []), *harness.trainer(given, train_dir), f'--variable_update={mode}',
            f'--num_gpus={towers // processes}', f'--batch_size={step_images(given, towers) // towers}',
            f'--max_steps={updates + spare}', f'--log_frequency={updates // 2}', f'--tower_device={given.tower_device}')
        return harness.second_half(train_dir)


def step_images(given, towers):
    """Returns how many images all towers together take in a step."""
    return given.batch_size * towers if given.batch_size else given.global_batch


def step_seconds(given, results):
    """Returns {(row, towers): [seconds]} in which every tower takes one batch, of results {(row, towers): [images/s]}.

    This is the wall clock of a synchronous step, not divided by the towers. It is computed from the rate because
    an asynchronous step is one tower's, and because the trainer's lines round it to milliseconds.
    """
    return {(row, towers): [rate and step_images(given, towers) / rate for rate in rates]
            for (row, towers), rates in results.items()}


def weak_tables(given, results, modes, counts):
    """Returns the lines of a Markdown table a mode: seconds a batch and images/s over the tower counts."""
    seconds, lines = step_seconds(given, results), []
    for mode in modes:
        lines += ['', f'{mode}, {given.batch_size} images a tower:', '',
                  '| towers | sec/batch | images/s |', '|---|---|---|']
        lines += [f'| {n} | {harness.spread(seconds[mode, n], 3)} | {harness.spread(results[mode, n])} |'
                  for n in counts]
    return lines[1:]


def table(results, modes, counts):
    """Returns the lines of a Markdown table of results {(mode, towers): [images/s]}."""
    lines = ['| images/s (ratio) | ' + ' | '.join(f"{n} tower{'s' * (n > 1)}" for n in counts) + ' |',
             f"|---|{'---|' * len(counts)}"]
    for mode in modes:
        cells = []
        for n in counts:
            ratio = harness.ratio(results[mode, n], results.get((next(iter(UPDATE_MODES)), n), []))
            cells.append(harness.spread(results[mode, n]) + ('' if ratio is None else f' ({ratio:.2f})'))
        lines.append(f"| {mode} | {' | '.join(cells)} |")
    return lines


def draw(path, results, modes, counts, label):
    """Draws the medians to a PNG, with a label below the tower counts."""
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for i, mode in enumerate(modes):
        places = [j + (i - len(modes) / 2 + 0.5) / (len(modes) + 1) for j in range(len(counts))]
        good = [[rate for rate in results[mode, n] if rate is not None] for n in counts]
        axes.bar(places, [statistics.median(rates) if rates else 0 for rates in good], 1 / (len(modes) + 1), label=mode)
    axes.set_xticks(range(len(counts)), [f'{n}' for n in counts])
    axes.set_xlabel(label)
    axes.set_ylabel('images/s')
    axes.legend(ncol=len(modes), loc='upper center', bbox_to_anchor=(0.5, 1.14))
    figure.savefig(path, dpi=120, bbox_inches='tight', format='png')


def parse():
    """Returns the command line's flags.

    Raises:
      UsageError: they contradict each other.
    """
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument('--tower_device', default='auto', choices=TOWER_DEVICES,
                        help='what the towers run on (default: %(default)s)')
    parser.add_argument('--modes', type=harness.listed(str, UPDATE_MODES), default=list(UPDATE_MODES),
                        metavar='MODE,...', help='update modes (default: all)')
    parser.add_argument('--towers', type=harness.listed(flags.at_least(1)), default=[1, 2, 4, 8], metavar='N,...',
                        help='tower counts (default: 1,2,4,8)')
    parser.add_argument('--processes', action='store_true',
                        help='also with a process a tower: a cluster of workers on this machine')
    batch = parser.add_mutually_exclusive_group()
    batch.add_argument('--global_batch', type=flags.at_least(1), metavar='N',
                       help='images in flight, shared by the towers (default: 128)')
    batch.add_argument('--batch_size', type=flags.at_least(1), metavar='N',
                       help='images of one tower instead, as in the trainer; prints seconds a batch, from one tower on')
    parser.add_argument('--steps', type=flags.at_least(2), default=100, metavar='N',
                        help='of all towers, a cell and round (default: %(default)s)')
    parser.add_argument('--rounds', type=flags.at_least(1), default=3, metavar='N', help='(default: %(default)s)')
    parser.add_argument('--plot', metavar='FILE', help='draw the medians to a PNG')
    given = parser.parse_args()
    if given.batch_size:
        given.towers = sorted({1, *given.towers})  # what the other rows are compared to
        return given
    given.global_batch = given.global_batch or 128
    for n in given.towers:
        if given.global_batch % n:
            raise UsageError(f'--global_batch={given.global_batch} cannot be shared by {n} towers; use a multiple')
    return given


def main():
    """Measures all cells, prints the tables, writes JSON and a picture."""
    given = parse()
    harness.check(given)
    rows = list(given.modes)
    if given.processes:
        rows += [mode + _CLUSTER for mode in given.modes if mode != 'mirrored']
    cells = [(row, n) for n in given.towers for row in rows]
    results = harness.measure(cells, given.rounds, lambda cell: measure(given, *cell))
    lines = weak_tables(given, results, rows, given.towers) if given.batch_size else table(results, rows, given.towers)
    print('\n'.join(lines))
    if given.json:
        def named(figures):
            return {f'{row}, {n} towers': values for (row, n), values in figures.items()}
        harness.write_json(given.json, flags=vars(given), images_per_sec=named(results),
                           sec_per_batch=named(step_seconds(given, results)))
    if given.plot:
        draw(given.plot, results, rows, given.towers, f'towers, each with a batch of {given.batch_size}'
             if given.batch_size else 'towers, sharing the same global batch')
    harness.end(results)


if __name__ == '__main__':
    sys.exit(program.run(main))
