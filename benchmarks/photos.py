#!/usr/bin/env python3
"""Measures how accurate models of photos are: the preset `photos`, what it replaced, and a plain Keras script.

    python benchmarks/photos.py --sets=textures,scenes,cifar10 --data_dir=... --seeds=3

The sets `textures` and `scenes` are generated; `cifar10` and the other data sets are enlarged to photos of 128 to 200
pixels. All train on --count photos, and are tested on a fifth as many others. What the preset replaced and Keras get as
long as the preset took: the former ends with a signal, and its newest checkpoint counts.
"""
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from PIL import Image

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import generated_photos, harness  # noqa: E402
from cifar10.base.registry import DATASETS  # noqa: E402
from cifar10.data import records  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402
from cifar10.run import metrics  # noqa: E402

_SIDES = (128, 201)  # of enlarged images, in pixels
# The command for photos that the pages had before there was a preset.
_BEFORE = ['--image_size=224', '--network=examples/resnet18.py:network', '--batch_size=64', '--save_steps=1']
_ENDED = (program.FINISHED, program.STOPPED)


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
    tests = options.count // 5
    for part, count, first in ((records.TRAIN, options.count, 0), (records.TEST, tests, options.count)):
        if name in generated_photos.SETS:
            generated_photos.write(name, os.path.join(folder, part), count, first=first)
        else:
            enlarge(name, options.data_dir, os.path.join(folder, part), part, count)


def train(folder, train_dir, seed, seconds, *extra):
    """Trains, for at most some seconds if any are given; returns (seconds, percentage of the test photos)."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, 'multi_gpu_train.py', f'--dataset={folder}', f'--train_dir={train_dir}',
                                f'--seed={seed}', *extra], stdout=subprocess.DEVNULL, cwd=harness.ROOT)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    if process.wait() not in _ENDED:
        raise harness.Failed(f'{train_dir} ended with status {process.returncode}')
    taken = time.perf_counter() - begin
    harness.output_of('cifar10_eval.py', '--run_once', f'--train_dir={train_dir}')
    return taken, 100 * metrics.last(os.path.join(train_dir, 'eval'), metrics.EVAL)['precision']


def keras(folder, seed, seconds):
    """Returns the percentage of the test photos that the Keras script reaches in some seconds."""
    line = harness.output_of('benchmarks/peers/keras_photos.py', f'--folder={folder}', f'--seconds={seconds}',
                             f'--seed={seed}').splitlines()[-1]
    return 100 * float(line.partition('accuracy=')[2])


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
            rows = results[name] = []
            for seed in range(options.seeds):
                seconds, preset = train(folder, os.path.join(scratch, f'preset{seed}'), seed, None, '--preset=photos',
                                        *options.setting.split())
                _, before = train(folder, os.path.join(scratch, f'before{seed}'), seed, seconds, *_BEFORE)
                rows.append((seconds / 60, preset, before, keras(folder, seed, seconds)))
                print(f"{name}, seed {seed}: {' '.join(f'{figure:.1f}' for figure in rows[-1])}", file=sys.stderr,
                      flush=True)
    print('| set | minutes | `--preset=photos` | before | Keras |', '|---|---|---|---|---|', sep='\n')
    for name, rows in results.items():
        minutes, *accuracies = zip(*rows)
        print(f'| {name} | {statistics.mean(minutes):.1f} | ' + ' | '.join(
            harness.mean_spread(figures, 1, '%') for figures in accuracies) + ' |')
    if options.json:
        harness.write_json(options.json, flags=vars(options), results=results)


if __name__ == '__main__':
    sys.exit(program.run(main))
