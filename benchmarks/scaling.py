#!/usr/bin/env python3
"""Measures the speed of every update mode over the number of towers: strong and weak scaling.

    python benchmarks/scaling.py --data_dir=/tmp/cifar10_data --rounds=3
    python benchmarks/scaling.py --data_dir=/tmp/cifar10_data --rounds=3 --batch_size=128

In strong scaling the towers share 128 images. In weak scaling each tower has --batch_size images. Each cell runs the
trainer in new processes; all cells are measured in turn, for several rounds. Prints medians with the lowest and highest
figures: images/s, and seconds for one batch of every tower.

If a cell fails, its error is reported, the benchmark continues, and the exit status is 1.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10.base.errors import UsageError  # noqa: E402
from cifar10.base.registry import UPDATE_MODES  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402
from cifar10.settings.training import TOWER_DEVICES  # noqa: E402

_GLOBAL_BATCH = 128  # for strong scaling
_CLUSTER = ', a process each'  # suffix of a row's mode: each tower runs in its own process


def measure(options, row, towers):
    """Trains once, in one process or one per tower; returns the images/s of the second half of its steps."""
    mode = row.removesuffix(_CLUSTER)
    workers = towers if row.endswith(_CLUSTER) else 1
    updates = options.steps * (towers if mode == 'async' else 1)  # an asynchronous update consumes one tower's batch
    return harness.training_speed(
        options, updates, f'--variable_update={mode}', f'--num_gpus={towers // workers}',
        f'--batch_size={step_images(options, towers) // towers}', f'--tower_device={options.tower_device}',
        workers=workers, spare=10 * towers)


def step_images(options, towers):
    """Returns the number of images of all towers in one step."""
    return options.batch_size * towers if options.batch_size else _GLOBAL_BATCH


def table(options, results):
    """Returns the lines of a Markdown table of results {(row, towers): [images/s]}.

    The seconds are the duration of a synchronous step, not divided by the number of towers. They are computed from the
    rate, because an asynchronous step consumes only one tower's batch, and the trainer prints only milliseconds.
    """
    def cell(row, towers):
        rates = results[row, towers]
        seconds = [rate and step_images(options, towers) / rate for rate in rates]
        return f'{harness.spread(rates)}; {harness.spread(seconds, 3)}'
    rows = dict.fromkeys(row for row, _ in results)
    return harness.table(['images/s; seconds a batch', *(f"{n} tower{'s' * (n > 1)}" for n in options.towers)],
                         [[row, *(cell(row, n) for n in options.towers)] for row in rows])


def parse():
    """Returns the options of the command line."""
    parser = harness.parser(__doc__, rounds=3)
    parser.add_argument('--tower_device', default='auto', choices=TOWER_DEVICES,
                        help="the towers' devices (default: %(default)s)")
    parser.add_argument('--modes', type=harness.listed(str, UPDATE_MODES), default=list(UPDATE_MODES),
                        metavar='MODE,...', help='update modes (default: all)')
    parser.add_argument('--towers', type=harness.listed(flags.at_least(1)), default=[1, 2, 4, 8], metavar='N,...',
                        help='tower counts (default: 1,2,4,8)')
    parser.add_argument('--processes', action='store_true',
                        help='also measure a cluster on this machine, with a worker process for each tower')
    parser.add_argument('--batch_size', type=flags.at_least(1), metavar='N',
                        help='images of one tower in one step, for weak scaling (default: '
                             f'{_GLOBAL_BATCH} shared by the towers)')
    parser.add_argument('--steps', type=flags.at_least(2), default=100, metavar='N',
                        help='steps of all towers in each run (default: %(default)s)')
    options = parser.parse_args()
    for n in options.towers:
        if not options.batch_size and _GLOBAL_BATCH % n:
            raise UsageError(f'{_GLOBAL_BATCH} images cannot be shared by {n} towers; use --batch_size')
    return options


def main():
    """Measures all cells and reports them."""
    options = parse()
    harness.check(options)
    rows = list(options.modes)
    if options.processes:
        rows += [mode + _CLUSTER for mode in options.modes if mode != 'mirrored']
    cells = [(row, n) for n in options.towers for row in rows]
    harness.measure(options, cells, lambda cell, _: measure(options, *cell), lambda results: table(options, results))


if __name__ == '__main__':
    sys.exit(program.run(main))
