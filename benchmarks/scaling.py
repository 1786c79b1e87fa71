#!/usr/bin/env python3
"""Images/s of every update mode over tower counts, with the same number of images in flight.

    python benchmarks/scaling.py --data_dir=/tmp/cifar10_data --rounds=3

Runs the trainer as a process for each cell, all cells in turn, several rounds; prints medians with the
lowest and highest, and each cell's ratio to `parameter_server` with as many towers in the same round.
A cell that fails is reported with its error, and the others go on.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODES = ('parameter_server', 'replicated', 'mirrored', 'async')
_RATE = re.compile(r'step \d+, loss = \S+ \(([\d.]+) examples/sec')


def measure(flags, mode, towers):
    """Runs one training process; returns its images/s in the second half of its steps.

    Raises:
      RuntimeError: it failed.
    """
    updates = flags.steps * (towers if mode == 'async' else 1)  # an asynchronous update is one tower's
    spare = 10 * towers  # the thread that reports may not be the one that takes the last
    with tempfile.TemporaryDirectory() as train_dir:
        result = subprocess.run(
            [sys.executable, os.path.join(ROOT, 'multi_gpu_train.py'), '--dataset=%s' % flags.dataset,
             '--data_dir=%s' % flags.data_dir, '--train_dir=%s' % train_dir, '--variable_update=%s' % mode,
             '--num_gpus=%d' % towers, '--batch_size=%d' % (flags.global_batch // towers),
             '--max_steps=%d' % (updates + spare), '--log_frequency=%d' % (updates // 2),
             '--tower_device=%s' % flags.tower_device],
            capture_output=True, text=True)
    rates = _RATE.findall(result.stdout)
    if result.returncode or len(rates) < 2:
        raise RuntimeError(result.stderr.strip() or 'no speed in its output')
    return float(rates[1])


def table(results, counts):
    """Returns the lines of a Markdown table of results {mode: {towers: [images/s]}}."""
    lines = ['| images/s (ratio) | %s |' % ' | '.join('%d tower%s' % (n, 's' * (n > 1)) for n in counts),
             '|---|%s' % ('---|' * len(counts))]
    for mode, cells in results.items():
        shown = []
        for n in counts:
            rates, base = cells[n], results[MODES[0]][n] if MODES[0] in results else []
            if not rates:
                shown.append('failed')
                continue
            ratio = statistics.median(a / b for a, b in zip(rates, base)) if base else float('nan')
            shown.append('%.0f, %.0f-%.0f (%.2f)' % (statistics.median(rates), min(rates), max(rates), ratio))
        lines.append('| `%s` | %s |' % (mode, ' | '.join(shown)))
    return lines


def draw(path, results, counts):
    """Draws the medians to a PNG; says so where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        print("no picture: matplotlib is missing (pip install -e '.[plots]')")
        return
    matplotlib.use('Agg')
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for i, (mode, cells) in enumerate(results.items()):
        places = [j + (i - len(results) / 2 + 0.5) / (len(results) + 1) for j in range(len(counts))]
        medians = [statistics.median(cells[n]) if cells[n] else 0 for n in counts]
        axes.bar(places, medians, 1 / (len(results) + 1), label=mode)
    axes.set_xticks(range(len(counts)), ['%d' % n for n in counts])
    axes.set_xlabel('towers, sharing the same global batch')
    axes.set_ylabel('images/s')
    axes.legend(ncol=len(results), loc='upper center', bbox_to_anchor=(0.5, 1.14))
    figure.savefig(path, dpi=120, bbox_inches='tight')


def main():
    """Measures all cells, prints the table, writes JSON and a picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--data_dir', default='/tmp/cifar10_data')
    parser.add_argument('--dataset', default='cifar10', choices=('cifar10', 'shapes'))
    parser.add_argument('--tower_device', default='auto')
    parser.add_argument('--modes', default=','.join(MODES), help='comma-separated')
    parser.add_argument('--towers', default='1,2,4,8', help='comma-separated')
    parser.add_argument('--global_batch', type=int, default=128)
    parser.add_argument('--steps', type=int, default=100, help='of the global batch, per cell and round')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--json', metavar='FILE')
    parser.add_argument('--plot', metavar='FILE')
    flags = parser.parse_args()
    counts = [int(n) for n in flags.towers.split(',')]
    results = {mode: {n: [] for n in counts} for mode in flags.modes.split(',')}
    for _ in range(flags.rounds):
        for n in counts:
            for mode in results:
                try:
                    results[mode][n].append(measure(flags, mode, n))
                except RuntimeError as error:
                    print('%s, %d towers: %s' % (mode, n, error), file=sys.stderr)
    print('\n'.join(table(results, counts)))
    if flags.json:
        with open(flags.json, 'w') as stream:
            json.dump(dict(vars(flags), images_per_sec=results), stream, indent=1)
    if flags.plot:
        draw(flags.plot, results, counts)


if __name__ == '__main__':
    main()
