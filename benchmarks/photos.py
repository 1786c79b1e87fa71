#!/usr/bin/env python3
"""Measures how accurate models of photos are: the preset `photos`, and a plain Keras script.

    python benchmarks/photos.py --sets=textures,scenes,cifar10 --data_dir=... --seeds=3

The sets `textures` and `scenes` are generated; `cifar10` and the other data sets are enlarged to photos of 128 to 200
pixels. Both train on --count photos, and are tested on 500 others. The preset trains for its epochs. Keras gets as much
processor time as the preset's process took, start included, so that other work on the machine favours neither of them.
The preset's last checkpoint counts, not its best one, which was chosen by the test photos.
"""
import os
import resource
import statistics
import sys
import tempfile
from typing import NamedTuple

import numpy as np
from PIL import Image

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import generated_photos, harness  # noqa: E402
from cifar10.base.registry import DATASETS  # noqa: E402
from cifar10.data import records  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402
from cifar10.run import metrics  # noqa: E402

_SIDES = (128, 201)  # of enlarged images, in pixels
_TESTS = 500  # photos to test on
_CONTENDERS = _PRESET, _KERAS = '`--preset=photos`', 'Keras'


class Result(NamedTuple):
    """What a contender reached: minutes of processor time, epochs, and the percentage of the test photos."""
    minutes: float
    epochs: float
    accuracy: float


def enlarge(name, data_dir, folder, part, count):
    """Writes the first images of a part of a data set as JPEGs of varied size into a folder for each class."""
    data = records.prepare(name, data_dir, part)
    random = np.random.default_rng(0)
    for number, (pixels, label) in enumerate(zip(data.planes(count), labels(data))):
        path = os.path.join(folder, data.classes[label], f'{number:05}.jpg')
        os.makedirs(os.path.dirname(path), exist_ok=True)
        side = int(random.integers(*_SIDES))
        Image.fromarray(pixels.transpose(1, 2, 0)).resize((side, side), Image.BICUBIC).save(path, quality=90)


def labels(data):
    """Yields the labels of the images of Records, in order."""
    for path in data.files:
        yield from np.fromfile(path, np.uint8).reshape(-1, data.record_bytes)[:, data.label]


def write(name, options, folder):
    """Writes a set, divided into train/ and test/."""
    for part, count, first in ((records.TRAIN, options.count, 0), (records.TEST, _TESTS, options.count)):
        if name in generated_photos.SETS:
            generated_photos.write(name, os.path.join(folder, part), count, first=first)
        else:
            enlarge(name, options.data_dir, os.path.join(folder, part), part, count)


def train(folder, train_dir, seed, options):
    """Trains with the preset to its end; returns a Result."""
    before = processor_seconds()
    harness.output_of('multi_gpu_train.py', f'--dataset={folder}', f'--train_dir={train_dir}', f'--seed={seed}',
                      '--preset=photos', *options.setting.split())
    taken = processor_seconds() - before
    harness.output_of('cifar10_eval.py', '--run_once', f'--train_dir={train_dir}')
    reached = metrics.last(os.path.join(train_dir, 'eval'), metrics.EVAL)
    batch = metrics.last(train_dir, metrics.START)['settings']['batch_size']
    return Result(taken / 60, reached['step'] * batch / options.count, 100 * reached['precision'])


def processor_seconds():
    """Returns the seconds of processor time of all processes that this one has started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def keras(folder, seed, seconds):
    """Returns the Result of the Keras script after some seconds of processor time."""
    line = harness.output_of('benchmarks/peers/keras_photos.py', f'--folder={folder}', f'--seconds={seconds}',
                             f'--seed={seed}').splitlines()[-1]
    figures = dict(part.split('=') for part in line.split())
    return Result(float(figures['seconds']) / 60, float(figures['epochs']), 100 * float(figures['accuracy']))


def parse():
    """Returns the options of the command line."""
    parser = harness.parser(__doc__.splitlines()[0])
    choices = (*generated_photos.SETS, *DATASETS)
    parser.add_argument('--sets', type=harness.listed(str, choices), default=list(generated_photos.SETS),
                        metavar='SET,SET', help=f"of {', '.join(choices)} (default: the generated ones)")
    parser.add_argument('--count', type=flags.at_least(100), default=2000, metavar='N',
                        help='photos to train on (default: %(default)s)')
    parser.add_argument('--seeds', type=flags.at_least(1), default=3, metavar='N',
                        help='runs of each (default: %(default)s)')
    parser.add_argument('--first_seed', type=flags.at_least(0), default=0, metavar='N',
                        help='seed of the first run (default: %(default)s)')
    parser.add_argument('--setting', default='', metavar='FLAGS', help='flags added to --preset=photos, in quotes')
    return parser.parse_args()


def main():
    """Measures all sets with all seeds, and prints a table."""
    options = parse()
    results = {}
    for name in options.sets:
        with tempfile.TemporaryDirectory() as scratch:
            folder = os.path.join(scratch, name)
            write(name, options, folder)
            runs = results[name] = {contender: [] for contender in _CONTENDERS}
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                runs[_PRESET].append(train(folder, os.path.join(scratch, f'preset{seed}'), seed, options))
                runs[_KERAS].append(keras(folder, seed, 60 * runs[_PRESET][-1].minutes))
                for contender in _CONTENDERS:
                    result = runs[contender][-1]
                    print(f'{name}, seed {seed}, {contender}: {result.accuracy:.1f}% after {result.epochs:.1f} epochs, '
                          f'{result.minutes:.2f} minutes', file=sys.stderr, flush=True)
    rows = [[name, f'{statistics.mean(result.minutes for result in runs[_PRESET]):.1f}', *map(cell, runs.values())]
            for name, runs in results.items()]
    harness.report(options, harness.table(['set', 'minutes', *_CONTENDERS], rows), results=results)


def cell(runs):
    """Returns the accuracies and the epochs of a contender's runs, for the table."""
    epochs = statistics.mean(run.epochs for run in runs)
    return f"{harness.mean_spread([run.accuracy for run in runs], 1, '%')}, {epochs:.1f} epochs"


if __name__ == '__main__':
    sys.exit(program.run(main))
