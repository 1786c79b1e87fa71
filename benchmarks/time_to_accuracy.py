#!/usr/bin/env python3
"""Measures the duration of training commands and the accuracy of the trained networks, over several seeds.

    python benchmarks/time_to_accuracy.py --data_dir=... --setting="--epochs=2" --setting="--epochs=9" --plot=time.png

Each setting is a string of flags to add to --preset=fast. The settings take turns within a seed. Each seed first
measures the speed of the classic preset, which distinguishes a fast machine from a fast recipe. --classic_dir names a
run of the classic preset with evaluations (--eval_steps); the plot includes their accuracies, at times according to the
measured speed.
"""
import os
import shlex
import statistics
import sys
import tempfile
import time
from typing import NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10.base.errors import UsageError  # noqa: E402
from cifar10.programs import program  # noqa: E402
from cifar10.run import metrics  # noqa: E402
from cifar10.settings.presets import parse_sizes  # noqa: E402

_CLASSIC = 'classic preset'  # the cell that measures its speed
_CLASSIC_STEPS = 200
_CLASSIC_BATCH = 128
_WIDTHS = 64, 128, 128  # channels of each group of layers of the fast network
_TICKS = {5: '5 s', 10: '10 s', 20: '20 s', 30: '30 s', 60: '1 min', 120: '2 min', 300: '5 min', 600: '10 min',
          1800: '30 min', 3600: '1 h', 7200: '2 h', 14400: '4 h'}


class Run(NamedTuple):
    """One training command.

    Attributes:
      seconds: wall-clock time of the command.
      images: number of training images, including repeats.
      teraflop: floating-point operations of convolutions and matrix products, computed from their shapes, in units of
        10^12; NaN for networks other than `fast`.
      plain: test accuracy in percent, without test-time averaging.
      averaged: test accuracy in percent, with test-time averaging; NaN if the run has none.
    """
    seconds: float
    images: int
    teraflop: float
    plain: float
    averaged: float

    @property
    def images_per_sec(self):
        """Images divided by the duration of the command."""
        return self.images / self.seconds


def layers(size):
    """Returns (multiply-adds per image, number of times per training step) of each layer of the fast network.

    A layer computes its output and the gradients of its input and of its filters, with the same number of
    multiply-adds. The whitening layer has no gradients, and its successor has no gradient of its input.
    """
    size -= 1
    inputs = 24
    operations = [(size ** 2 * 4 * 3 * inputs, 1)]  # the untrained whitening
    for i, width in enumerate(_WIDTHS):
        operations.append((size ** 2 * 9 * inputs * width, 3 if i else 2))
        size //= 2
        inputs = width
        operations.append((size ** 2 * 9 * width * width, 3))
    operations.append((inputs * 10, 3))
    return operations


def flop_of_image(size):
    """Returns the floating-point operations per image of a training step; a multiply-add counts twice."""
    return sum(2 * operations * times for operations, times in layers(size))


def teraflop(settings, images):
    """Returns the floating-point operations of a run of the fast network, in units of 10^12."""
    if settings['network'] != 'fast':
        return float('nan')
    sizes = parse_sizes(settings['sizes'] or ('24' if settings['augmentation'] == 'classic' else '32'))
    ends = [begin for begin, _ in sizes[1:]] + [1.0]
    return sum((end - begin) * images * flop_of_image(size)
               for (begin, size), end in zip(sizes, ends)) / 1e12


def train(options, setting, seed):
    """Trains with the fast preset, evaluates the result, and returns the Run."""
    with tempfile.TemporaryDirectory() as train_dir:
        begin = time.perf_counter()
        harness.output_of(*harness.trainer(options, train_dir), '--preset=fast', f'--seed={seed}',
                          *shlex.split(setting))
        seconds = time.perf_counter() - begin
        evaluation = harness.evaluated(train_dir)
        settings = metrics.last(train_dir, metrics.START)['settings']
    images = evaluation['step'] * settings['batch_size'] * (settings['num_towers'] or 1)
    averaged = evaluation.get('averaged_accuracy', float('nan'))
    return Run(seconds, images, teraflop(settings, images), 100 * evaluation['accuracy'], 100 * averaged)


def measure(options, cell, seed):
    """Returns the Run of a setting, or the images/s of the classic preset."""
    if cell == _CLASSIC:
        return harness.training_speed(options, _CLASSIC_STEPS, f'--save_steps={_CLASSIC_STEPS // 2}')
    return train(options, cell, seed)


def table(results):
    """Returns the lines of a Markdown table of results {setting: [Run], _CLASSIC: [images/s]}."""
    def mean(name, runs, decimals):
        return harness.spread([run and getattr(run, name) for run in runs], decimals, statistics.mean)
    rows = [[f'`{setting}`', mean('seconds', runs, 1), mean('plain', runs, 2), mean('averaged', runs, 2),
             mean('images_per_sec', runs, 0), mean('teraflop', runs, 1)]
            for setting, runs in results.items() if setting != _CLASSIC]
    classic = [_CLASSIC, '', '', '', harness.spread(results[_CLASSIC], middle=statistics.mean), '']
    return harness.table(['`--preset=fast` and', 'seconds', 'plain, %', 'with averaging, %', 'images/s', 'TFLOP'],
                         [*rows, classic])


def draw(path, results, classic_dir):
    """Plots accuracy over time to a PNG: the settings' means and ranges, and the curve of a classic run, if any."""
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(7, 4))
    settings = [harness.present(runs) for setting, runs in results.items() if setting != _CLASSIC]
    for label, column, colour in (('fast, with test-time averaging', 'averaged', 'C0'), ('fast, plain', 'plain', 'C2')):
        points = sorted((statistics.mean(run.seconds for run in runs), [getattr(run, column) for run in runs])
                        for runs in settings if runs)
        means = [statistics.mean(values) for _, values in points]
        axes.errorbar([seconds for seconds, _ in points], means, marker='o', capsize=3, color=colour, label=label,
                      yerr=[[mean - min(values) for mean, (_, values) in zip(means, points)],
                            [max(values) - mean for mean, (_, values) in zip(means, points)]])
    speeds = harness.present(results[_CLASSIC])
    if classic_dir and speeds:
        curve = metrics.read(classic_dir, metrics.EVAL)
        axes.plot([record['step'] * _CLASSIC_BATCH / statistics.mean(speeds) for record in curve],
                  [100 * record['accuracy'] for record in curve], color='C1', label='classic')
    axes.set_xscale('log')
    low, high = axes.get_xlim()
    ticks = [seconds for seconds in _TICKS if low <= seconds <= high]
    axes.set_xticks(ticks, [_TICKS[seconds] for seconds in ticks])
    axes.minorticks_off()
    axes.set_xlabel('training time')
    axes.set_ylabel('test images classified correctly, %')
    axes.grid(alpha=0.3)
    axes.legend(loc='lower right')
    figure.savefig(path, dpi=120, bbox_inches='tight', format='png')


def main():
    """Runs all settings with all seeds, and prints and plots the results."""
    parser = harness.parser(__doc__, seeds=5)
    parser.add_argument('--setting', action='append', metavar='FLAGS', dest='settings',
                        help='flags to add to --preset=fast, in quotes; may be repeated (default: no flags)')
    parser.add_argument('--classic_dir', metavar='DIR', help='train_dir of a run of the classic preset')
    parser.add_argument('--plot', metavar='FILE', help='PNG file for a plot of accuracy over time')
    options = parser.parse_args()
    harness.check(options)
    if options.classic_dir and not metrics.read(options.classic_dir, metrics.EVAL):
        raise UsageError(f'--classic_dir={options.classic_dir} has no evaluations; train it with --eval_steps')
    cells = dict.fromkeys([_CLASSIC, *(options.settings or [''])])
    harness.measure(options, cells, lambda cell, seed: measure(options, cell, seed), table,
                    lambda path, results: draw(path, results, options.classic_dir))


if __name__ == '__main__':
    sys.exit(program.run(main))
