#!/usr/bin/env python3
"""What towers cost: seconds to the first step and peak memory over the number of towers.

    python benchmarks/tower_cost.py --dataset=shapes --data_dir=/tmp/shapes_data
    python benchmarks/tower_cost.py --dataset=shapes --batch_size=128 --towers=1,32 --rows=shared

Each cell trains for three steps in a process of its own; all cells are measured in turn, for several rounds.
In the row `shared` all towers are on one device; in the rows `parameter_server` and `replicated` each has a
device of its own. Prints medians with the lowest and highest figures.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402

# Row: the update mode, and whether each tower has a device of its own.
ROWS = {'shared': ('parameter_server', False), 'parameter_server': ('parameter_server', True),
        'replicated': ('replicated', True)}


def measure(options, row, towers):
    """Returns (seconds to the end of the first step, peak memory in MiB) of a run."""
    mode, own_device = ROWS[row]
    return harness.start_up(options, f'--variable_update={mode}', f'--num_gpus={towers if own_device else 1}',
                            f'--num_towers={towers}', f'--batch_size={options.batch_size}', '--max_steps=3',
                            '--tower_device=cpu')


def lines(results, rows, counts):
    """Returns the lines of a Markdown table of results {(row, towers): [(seconds, MiB)]}."""
    def cell(figures):
        seconds, mebibytes = ([figure and figure[i] for figure in figures] for i in (0, 1))
        return f'{harness.spread(seconds, 1)}; {harness.spread(mebibytes)}'
    return harness.table(['seconds to the first step; peak MiB', *counts],
                         [[row, *(cell(results[row, n]) for n in counts)] for row in rows])


def main():
    """Measures all cells and reports them."""
    parser = harness.parser(__doc__.splitlines()[0], rounds=3)
    parser.add_argument('--towers', type=harness.listed(flags.at_least(1)), default=[1, 4, 16, 64], metavar='N,...',
                        help='tower counts (default: 1,4,16,64)')
    parser.add_argument('--rows', type=harness.listed(str, ROWS), default=list(ROWS), metavar='ROW,...',
                        help='rows to measure (default: all): ' + ', '.join(ROWS))
    parser.add_argument('--batch_size', type=flags.at_least(1), default=2, metavar='N',
                        help='images of one tower in one step (default: %(default)s)')
    options = parser.parse_args()
    harness.check(options)
    cells = [(row, n) for n in options.towers for row in options.rows]
    results = harness.measure(cells, options.rounds, lambda cell: measure(options, *cell))
    harness.report(options, lines(results, options.rows, options.towers), seconds_and_mebibytes=results)
    harness.end(results)


if __name__ == '__main__':
    sys.exit(program.run(main))
