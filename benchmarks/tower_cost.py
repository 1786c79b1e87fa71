#!/usr/bin/env python3
"""What towers cost: seconds to the first step and peak memory, over the number of towers.

    python benchmarks/tower_cost.py --dataset=shapes --data_dir=/tmp/shapes_data
    python benchmarks/tower_cost.py --dataset=shapes --batch_size=128 --towers=1,32 --rows=shared

Trains three steps as a process for each cell, all cells in turn, several rounds. In the row `shared` all towers
are on one device, in the rows `parameter_server` and `replicated` each has its own. Prints medians with the
lowest and highest.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10.cli import flags, program  # noqa: E402

# Row: the update mode, and whether each tower has a device of its own.
ROWS = {'shared': ('parameter_server', False), 'parameter_server': ('parameter_server', True),
        'replicated': ('replicated', True)}


def measure(given, row, towers):
    """Returns (seconds to the end of the first step, peak MiB) of a run.

    Raises:
      harness.Failed: it failed.
    """
    mode, own_device = ROWS[row]
    return harness.start_up(given, f'--variable_update={mode}', f'--num_gpus={towers if own_device else 1}',
                            f'--num_towers={towers}', f'--batch_size={given.batch_size}', '--max_steps=3')


def table(results, rows, counts):
    """Returns the lines of a Markdown table of results {(row, towers): [(seconds, MiB)]}."""
    lines = ['| seconds to the first step; peak MiB | ' + ' | '.join(map(str, counts)) + ' |',
             f"|---|{'---|' * len(counts)}"]
    for row in rows:
        cells = []
        for n in counts:
            figures = [figure for figure in results[row, n] if figure is not None]
            seconds, mebibytes = zip(*figures) if figures else ([], [])
            cells.append(f'{harness.spread(seconds, 1)}; {harness.spread(mebibytes)}')
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def main():
    """Measures all cells, prints the table, writes JSON."""
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument('--towers', type=harness.listed(flags.at_least(1)), default=[1, 4, 16, 64], metavar='N,...',
                        help='tower counts (default: 1,4,16,64)')
    parser.add_argument('--rows', type=harness.listed(str, ROWS), default=list(ROWS), metavar='ROW,...',
                        help='what to measure (default: all): ' + ', '.join(ROWS))
    parser.add_argument('--batch_size', type=flags.at_least(1), default=2, metavar='N',
                        help='images of one tower (default: %(default)s)')
    parser.add_argument('--rounds', type=flags.at_least(1), default=3, metavar='N', help='(default: %(default)s)')
    given = parser.parse_args()
    harness.check(given)
    cells = [(row, n) for n in given.towers for row in given.rows]
    results = harness.measure(cells, given.rounds, lambda cell: measure(given, *cell))
    print('\n'.join(table(results, given.rows, given.towers)))
    if given.json:
        named = {f'{row}, {n} towers': figures for (row, n), figures in results.items()}
        harness.write_json(given.json, flags=vars(given), seconds_and_mebibytes=named)
    harness.end(results)


if __name__ == '__main__':
    sys.exit(program.run(main))
