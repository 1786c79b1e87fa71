#!/usr/bin/env python3
"""Compares the training speed of this program with other programs for the same task.

    python benchmarks/throughput.py --data_dir=/tmp/cifar10_data --plot=throughput.png
    python benchmarks/throughput.py --dataset=shapes --rounds=1 --steps=80

Every cell runs in a new process; all cells are measured in turn, for several rounds. The runs of this program are
complete, with input, summaries and a checkpoint; the peers are the programs in `benchmarks/peers`, which train the same
network on the same files. Prints medians with the lowest and highest figures, and medians of the ratios within a round.
"""
import os
import re
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10.data import datasets  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402

BATCH = 128

# Cell: the flags of a training run.
RUNS = {'fp32': [], 'bf16': ['--precision=bf16'], 'four towers': ['--num_gpus=4', f'--batch_size={BATCH // 4}']}
# Cell: the script and the flags of a peer.
PEERS = {'queue runner': ['queue_runner.py'], 'Keras': ['keras_mirrored.py'], 'PyTorch': ['pytorch.py'],
         'PyTorch bf16': ['pytorch.py', '--precision=bf16'], 'PyTorch compiled': ['pytorch.py', '--compile'],
         'PyTorch compiled bf16': ['pytorch.py', '--compile', '--precision=bf16']}


def peer(options, name):
    """Returns a peer's images/s."""
    with tempfile.TemporaryDirectory() as data_dir:  # with only this data set
        folder = os.path.dirname(datasets.prepare(options.dataset, options.data_dir).files[0])
        os.symlink(os.path.abspath(folder), os.path.join(data_dir, 'records'))
        script, *extra = PEERS[name]
        output = harness.output_of('benchmarks/peers/' + script, *extra, '--data_dir=' + data_dir,
                                   f'--steps={options.steps // 2}', f'--batch_size={BATCH}',
                                   f'--device={options.tower_device}')
    return float(re.search(r'images_per_sec=([\d.]+)', output).group(1))


def measure(options, cell):
    """Returns the images/s of a cell in RUNS or PEERS."""
    if cell in PEERS:
        return peer(options, cell)
    return harness.training_speed(options, options.steps, '--preset=classic', f'--save_steps={options.steps // 2}',
                                  f'--tower_device={options.tower_device}', *RUNS[cell])


def table(results):
    """Returns the lines of a Markdown table of results {cell: [images/s]}, with ratios at equal precision."""
    rows = []
    for cell, figures in results.items():
        own = results.get('bf16' if 'bf16' in cell else 'fp32', [])
        ratio = harness.ratio(own, figures) if cell in PEERS else None
        rows.append([cell, harness.spread(figures), '' if ratio is None else f'{ratio:.2f}x'])
    return harness.table(['', 'images/s', 'this program is faster by'], rows)


def draw(path, results):
    """Plots the training speeds to a PNG: medians, with the lowest and highest as error bars."""
    from matplotlib import pyplot
    bars = [(cell, harness.present(figures)) for cell, figures in results.items() if harness.present(figures)][::-1]
    middles = [statistics.median(figures) for _, figures in bars]
    ends = [[middle - min(figures) for middle, (_, figures) in zip(middles, bars)],
            [max(figures) - middle for middle, (_, figures) in zip(middles, bars)]]
    figure, axes = pyplot.subplots(figsize=(7, 3.5))
    axes.barh([cell for cell, _ in bars], middles, xerr=ends,
              color=['tab:gray' if cell in PEERS else 'tab:blue' for cell, _ in bars])
    axes.set_xlabel(f'images/s, training the same network on {harness.machine()}')
    figure.savefig(path, dpi=120, bbox_inches='tight', format='png')


def main():
    """Measures all cells, and reports and plots them."""
    cells = [*RUNS, *PEERS]
    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument('--steps', type=flags.at_least(4), default=400, metavar='N',
                        help='steps of a training run; the second half is timed (default: %(default)s)')
    parser.add_argument('--cells', type=harness.listed(str, cells), default=cells, metavar='CELL,...',
                        help='cells to measure (default: all): ' + ', '.join(cells))
    parser.add_argument('--tower_device', default='cpu', choices=('cpu', 'gpu'),
                        help='device of the runs and of the peers (default: %(default)s)')
    parser.add_argument('--plot', metavar='FILE', help='PNG file for a plot of the training speeds')
    options = parser.parse_args()
    harness.check(options)
    harness.measure(options, options.cells, lambda cell, _: measure(options, cell), table, draw)


if __name__ == '__main__':
    sys.exit(program.run(main))
