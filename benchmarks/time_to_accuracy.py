#!/usr/bin/env python3
"""Measures over several seeds how long training commands take and how accurate the trained networks are.

    python benchmarks/time_to_accuracy.py --data_dir=... --setting="--epochs=2" --setting="--epochs=9"
    --plot=time.png

Each setting is a string of flags that are added to --preset=fast. The settings take turns within a seed.
Before each seed the speed of the classic preset is measured, which distinguishes a fast machine from a fast
recipe. --classic_dir names a finished run of the classic preset that kept all its checkpoints; its accuracies
are drawn too, at the times that it would take at the measured speed.
"""
import dataclasses
import json
import os
import shlex
import shutil
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10.base.errors import RunError  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402
from cifar10.run import metrics  # noqa: E402
from cifar10.settings.presets import parse_sizes, parse_widths  # noqa: E402

CLASSIC_BATCH = 128
_TICKS = {5: '5 s', 10: '10 s', 20: '20 s', 30: '30 s', 60: '1 min', 120: '2 min', 300: '5 min', 600: '10 min',
          1800: '30 min', 3600: '1 h', 7200: '2 h', 14400: '4 h'}


@dataclasses.dataclass(frozen=True)
class Run:
    """One training command.

    Attributes:
      seconds: wall-clock time from the start of the command to its end.
      images: images that it trained on, repeats included.
      teraflop: floating-point operations of its convolutions and matrix products, computed from their shapes,
        in units of 10^12.
      plain: percentage of the test images that are classified correctly without test-time averaging.
      averaged: the same with test-time averaging; None if the run has none.
    """
    seconds: float
    images: int
    teraflop: float
    plain: float
    averaged: float | None


def evaluations(options, train_dir):
    """Evaluates the newest checkpoint; returns (step, plain percentage, averaged percentage or None)."""
    with tempfile.TemporaryDirectory() as eval_dir:
        harness.output_of('cifar10_eval.py', '--run_once', f'--checkpoint_dir={train_dir}', '--batch_size=500',
                          f'--eval_dir={eval_dir}', f'--tower_device={options.tower_device}')
        record, = metrics.read(eval_dir, metrics.EVAL)
    averaged = record.get('averaged_precision')
    return record['step'], 100 * record['precision'], None if averaged is None else 100 * averaged


def layers(widths, size):
    """Returns (multiply-adds per image, how often a training step computes them) of each layer of the fast network.

    A layer computes its output, the gradient of its input and the gradient of its filters: three times the
    same number. The gradients are not computed for the whitening, nor for the input of the layer after it.
    """
    size -= 1
    inputs = 24
    operations = [(size ** 2 * 4 * 3 * inputs, 1)]  # the whitening, which is not trained
    for i, width in enumerate(widths):
        operations.append((size ** 2 * 9 * inputs * width, 3 if i else 2))
        size //= 2
        inputs = width
        operations.append((size ** 2 * 9 * width * width, 3))
    operations.append((inputs * 10, 3))
    return operations


def flop_of_image(widths, size):
    """Returns the floating-point operations per image of a training step; a multiply-add counts as two."""
    return sum(2 * operations * times for operations, times in layers(widths, size))


def teraflop(settings, images):
    """Returns the floating-point operations of a run of the fast network, in units of 10^12."""
    sizes = parse_sizes(settings['sizes'] or ('24' if settings['augmentation'] == 'classic' else '32'))
    widths = parse_widths(settings['widths'])
    ends = [begin for begin, _ in sizes[1:]] + [1.0]
    return sum((end - begin) * images * flop_of_image(widths, size)
               for (begin, size), end in zip(sizes, ends)) / 1e12


def train(options, setting, seed):
    """Trains with the fast preset, evaluates the result, and returns the Run."""
    with tempfile.TemporaryDirectory() as folder:
        train_dir = os.path.join(folder, 'train')
        begin = time.perf_counter()
        harness.output_of(*harness.trainer(options, train_dir), '--preset=fast', f'--seed={seed}',
                          f'--tower_device={options.tower_device}', *shlex.split(setting))
        seconds = time.perf_counter() - begin
        with open(os.path.join(train_dir, 'config.json')) as stream:
            settings = json.load(stream)['settings']
        step, plain, averaged = evaluations(options, train_dir)
    images = step * settings['batch_size'] * (settings['num_towers'] or 1)
    return Run(seconds, images, teraflop(settings, images), plain, averaged)


def classic_curve(options):
    """Evaluates every checkpoint of a finished run of the classic preset; returns [(step, percentage)]."""
    curve = []
    names = {name.removesuffix('.index') for name in os.listdir(options.classic_dir) if name.endswith('.index')}
    for name in sorted(names, key=lambda name: int(name.rsplit('-', 1)[1])):
        with tempfile.TemporaryDirectory() as folder:  # has this checkpoint only, so it is the newest
            for file_name in os.listdir(options.classic_dir):
                if file_name == 'config.json' or file_name.startswith(name + '.'):
                    shutil.copy(os.path.join(options.classic_dir, file_name), folder)
            step, plain, _ = evaluations(options, folder)
        curve.append((step, plain))
        print(f'classic, step {step}: {plain:.1f}%', file=sys.stderr, flush=True)
    return curve


def table(results, speeds):
    """Returns the lines of a Markdown table of results {setting: [Run]}."""
    rows = []
    for setting, runs in results.items():
        columns = [([run.seconds for run in runs], 1), ([run.plain for run in runs], 2),
                   ([run.averaged for run in runs], 2)]
        cells = ['' if None in figures else harness.mean_spread(figures, decimals) for figures, decimals in columns]
        rows.append([f'`{setting}`', *cells, f'{statistics.mean(run.images / run.seconds for run in runs):.0f}',
                     f'{runs[0].teraflop:.1f}', harness.mean_spread(speeds, 0)])
    return harness.table(['`--preset=fast` and', 'seconds', 'plain', 'with averaging', 'images/s', 'TFLOP',
                          'classic images/s'], rows)


def draw(path, results, curve, speed, batch):
    """Draws accuracy over time to a PNG: the settings' means and ranges, and the curve of the classic preset."""
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(7, 4))
    for label, column, colour in (('fast, with test-time averaging', 'averaged', 'C0'), ('fast, plain', 'plain', 'C2')):
        points = sorted((statistics.mean(run.seconds for run in runs), [getattr(run, column) for run in runs])
                        for runs in results.values() if None not in [getattr(run, column) for run in runs])
        means = [statistics.mean(values) for _, values in points]
        axes.errorbar([seconds for seconds, _ in points], means, marker='o', capsize=3, color=colour, label=label,
                      yerr=[[mean - min(values) for mean, (_, values) in zip(means, points)],
                            [max(values) - mean for mean, (_, values) in zip(means, points)]])
    if curve:
        axes.plot([step * batch / speed for step, _ in curve], [percent for _, percent in curve], color='C1',
                  label='classic')
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


def parse():
    """Returns the options of the command line."""
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument('--setting', action='append', metavar='FLAGS', dest='settings',
                        help='flags added to --preset=fast, in quotes; may be repeated (default: no flags)')
    parser.add_argument('--seeds', type=flags.at_least(1), default=5, metavar='N',
                        help='runs of each setting (default: %(default)s)')
    parser.add_argument('--tower_device', default='auto', choices=('auto', 'gpu', 'cpu'),
                        help='kind of device that the towers run on (default: %(default)s)')
    parser.add_argument('--classic_steps', type=flags.at_least(4), default=200, metavar='N',
                        help="steps that measure the classic preset's speed (default: %(default)s)")
    parser.add_argument('--classic_dir', metavar='DIR', help='train_dir of a finished run of the classic preset')
    parser.add_argument('--plot', metavar='FILE', help='PNG file to which accuracy over time is drawn')
    return parser.parse_args()


def main():
    """Runs all settings with all seeds, prints the table and draws the picture."""
    options = parse()
    harness.check(options)
    settings = list(dict.fromkeys(options.settings or ['']))
    results = {setting: [] for setting in settings}
    speeds = []  # of the classic preset
    for seed in range(options.seeds):
        speeds.append(harness.training_speed(options, options.classic_steps, f'--tower_device={options.tower_device}'))
        for setting in settings:
            run = train(options, setting, seed)
            results[setting].append(run)
            averaged = '' if run.averaged is None else f', {run.averaged:.1f}% with test-time averaging'
            print(f'seed {seed}, {setting or "as it is"}: {run.seconds:.1f} s, {run.plain:.2f}%{averaged}',
                  file=sys.stderr, flush=True)
    curve = classic_curve(options) if options.classic_dir else []
    harness.report(options, table(results, speeds), classic_speeds=speeds, classic_curve=curve, results={
        setting: [dataclasses.asdict(run) for run in runs] for setting, runs in results.items()})
    if options.plot:
        draw(options.plot, results, curve, statistics.mean(speeds), CLASSIC_BATCH)
    if not all(results.values()):
        raise RunError('a setting has no run that has ended; measure again')


if __name__ == '__main__':
    sys.exit(program.run(main))
