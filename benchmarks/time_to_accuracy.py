#!/usr/bin/env python3
"""Measures how long whole training commands take and how accurate what they train is, over seeds.

    python benchmarks/time_to_accuracy.py --data_dir=... --setting="--epochs=2" --setting="--epochs=9" --plot=time.png

Each setting is the flags that --preset=fast is given besides; the settings take turns within a seed, and before each
seed the classic preset's speed is measured, so that a fast machine can be told from a fast recipe. With
--classic_dir, a finished run of the classic preset whose checkpoints are all there, accuracies of it are drawn too, at
the times that it would take at that speed.
"""
import dataclasses
import json
import os
import shlex
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10.cli import flags, program  # noqa: E402
from cifar10.errors import RunError  # noqa: E402
from cifar10.run import metrics  # noqa: E402
from cifar10.settings.presets import parse_sizes, parse_widths  # noqa: E402

CLASSIC_BATCH = 128
_TICKS = {5: '5 s', 10: '10 s', 20: '20 s', 30: '30 s', 60: '1 min', 120: '2 min', 300: '5 min', 600: '10 min',
          1800: '30 min', 3600: '1 h', 7200: '2 h', 14400: '4 h'}


@dataclasses.dataclass(frozen=True)
class Run:
    """One training command.

    Attributes:
      seconds: its wall-clock time, from the command to its end.
      images: that it trained on, repeats included.
      teraflop: that its convolutions and matrix products take, computed from their shapes.
      plain, averaged: percentages of the test images that are right, without and with test-time averaging; the latter
        None if there is none.
    """
    seconds: float
    images: int
    teraflop: float
    plain: float
    averaged: float | None


def evaluations(given, train_dir):
    """Evaluates the newest checkpoint; returns (step, plain percentage, averaged percentage or None).

    Raises:
      Failed: it failed.
    """
    with tempfile.TemporaryDirectory() as eval_dir:
        harness.output_of('cifar10_eval.py', '--run_once', f'--checkpoint_dir={train_dir}', '--batch_size=500',
                          f'--eval_dir={eval_dir}', f'--tower_device={given.tower_device}', '--keep_best=false')
        found, = metrics.read(eval_dir, metrics.EVAL)
    averaged = found.get('averaged_precision')
    return found['step'], 100 * found['precision'], None if averaged is None else 100 * averaged


def layers(widths, size):
    """Returns (multiply-adds an image, how often it is computed in a training step) of each layer of the fast network.

    A layer is computed once and has two gradients of its size, but for those whose input or filters need none.
    """
    size, inputs = size - 1, 24
    found = [(size ** 2 * 4 * 3 * inputs, 1)]  # the whitening, which is not trained
    for i, width in enumerate(widths):
        found.append((size ** 2 * 9 * inputs * width, 3 if i else 2))
        size, inputs = size // 2, width
        found.append((size ** 2 * 9 * width * width, 3))
    return found + [(inputs * 10, 3)]


def flop_of_image(widths, size):
    """Returns the floating-point operations of a training step for an image; a multiply-add counts twice."""
    return sum(2 * operations * times for operations, times in layers(widths, size))


def teraflop(settings, images):
    """Returns the floating-point operations of a run of the fast network, in units of 10^12."""
    sizes, widths = parse_sizes(settings['sizes'] or '32'), parse_widths(settings['widths'])
    ends = [begin for begin, _ in sizes[1:]] + [1.0]
    return sum((end - begin) * images * flop_of_image(widths, size)
               for (begin, size), end in zip(sizes, ends)) / 1e12


def train(given, setting, seed):
    """Trains with the fast preset and evaluates; returns the Run."""
    with tempfile.TemporaryDirectory() as folder:
        train_dir = os.path.join(folder, 'train')
        begin = time.perf_counter()
        harness.output_of(*harness.trainer(given, train_dir), '--preset=fast', f'--seed={seed}',
                          f'--tower_device={given.tower_device}', *shlex.split(setting))
        seconds = time.perf_counter() - begin
        with open(os.path.join(train_dir, 'config.json')) as stream:
            settings = json.load(stream)
        step, plain, averaged = evaluations(given, train_dir)
    images = step * settings['batch_size'] * (settings['num_towers'] or 1)
    return Run(seconds, images, teraflop(settings, images), plain, averaged)


def classic_curve(given):
    """Evaluates every checkpoint of a finished run of the classic preset; returns [(step, percentage)]."""
    curve = []
    names = {name.removesuffix('.index') for name in os.listdir(given.classic_dir) if name.endswith('.index')}
    for name in sorted(names, key=lambda name: int(name.rsplit('-', 1)[1])):
        with tempfile.TemporaryDirectory() as folder:  # with one checkpoint in it, which is the newest
            for each in os.listdir(given.classic_dir):
                if each == 'config.json' or each.startswith(name + '.'):
                    os.symlink(os.path.join(os.path.abspath(given.classic_dir), each), os.path.join(folder, each))
            step, plain, _ = evaluations(given, folder)
        curve.append((step, plain))
        print(f'classic, step {step}: {plain:.1f}%', file=sys.stderr, flush=True)
    return curve


def report(results, speeds):
    """Returns the lines of a Markdown table of results {setting: [Run]}."""
    lines = ['| `--preset=fast` and | seconds | plain | with averaging | images/s | TFLOP | classic images/s |',
             '|---|---|---|---|---|---|---|']
    for setting, runs in results.items():
        columns = [([run.seconds for run in runs], 1), ([run.plain for run in runs], 2),
                   ([run.averaged for run in runs], 2)]
        cells = ['' if None in figures else harness.mean_spread(figures, decimals) for figures, decimals in columns]
        cells += [f'{statistics.mean(run.images / run.seconds for run in runs):.0f}', f'{runs[0].teraflop:.1f}',
                  harness.mean_spread(speeds, 0)]
        lines.append(f"| `{setting}` | {' | '.join(cells)} |")
    return lines


def draw(path, results, curve, speed, batch):
    """Draws accuracy over wall-clock time to a PNG: the settings' means with their spread, the classic's curve."""
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(7, 4))
    for label, column, colour in (('fast, with test-time averaging', 'averaged', 'C0'), ('fast, plain', 'plain', 'C2')):
        points = sorted((statistics.mean(run.seconds for run in runs), [getattr(run, column) for run in runs])
                        for runs in results.values())
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
    """Returns the command line's flags."""
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument('--setting', action='append', metavar='FLAGS', dest='settings',
                        help='flags besides --preset=fast, in quotes; may be given several times (default: none)')
    parser.add_argument('--seeds', type=flags.at_least(1), default=5, metavar='N', help='(default: %(default)s)')
    parser.add_argument('--tower_device', default='auto', choices=('auto', 'gpu', 'cpu'), help='(default: %(default)s)')
    parser.add_argument('--classic_steps', type=flags.at_least(4), default=200, metavar='N',
                        help="steps that the classic preset's speed is measured in (default: %(default)s)")
    parser.add_argument('--classic_dir', metavar='DIR', help='train_dir of a run of the classic preset')
    parser.add_argument('--plot', metavar='FILE', help='draw accuracy over time to a PNG')
    return parser.parse_args()


def main():
    """Runs all settings over the seeds, prints the table, draws the picture."""
    given = parse()
    harness.check(given)
    settings = list(dict.fromkeys(given.settings or ['']))
    results, speeds = {setting: [] for setting in settings}, []
    for seed in range(given.seeds):
        speeds.append(harness.training_speed(given, given.classic_steps, f'--tower_device={given.tower_device}'))
        for setting in settings:
            run = train(given, setting, seed)
            results[setting].append(run)
            averaged = '' if run.averaged is None else f', {run.averaged:.1f}% with test-time averaging'
            print(f'seed {seed}, {setting or "as it is"}: {run.seconds:.1f} s, {run.plain:.2f}%{averaged}',
                  file=sys.stderr, flush=True)
    curve = classic_curve(given) if given.classic_dir else []
    print('\n'.join(report(results, speeds)))
    if given.json:
        harness.write_json(given.json, flags=vars(given), classic_speeds=speeds, classic_curve=curve, results={
            setting: [dataclasses.asdict(run) for run in runs] for setting, runs in results.items()})
    if given.plot:
        draw(given.plot, results, curve, statistics.mean(speeds), CLASSIC_BATCH)
    if not all(results.values()):
        raise RunError('nothing was measured')


if __name__ == '__main__':
    sys.exit(program.run(main))
