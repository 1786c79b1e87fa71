#!/usr/bin/env python3
"""Measures the accuracy of models of photos: the preset `photos`, and a plain Keras script.

    python benchmarks/photos.py --sets=textures,cifar10 --data_dir=... --seeds=3

The set `textures` is generated; `cifar10` and the other data sets are enlarged to photos of 128 to 200 pixels. Both
models train on --count photos, and are tested on 500 different photos. The preset trains for its epochs. Keras gets as
much processor time as the preset's process, including its start, so other work on the machine does not distort the
comparison. The preset's last checkpoint counts, because the test photos select its best checkpoint.
"""
import os
import re
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
from cifar10.data import datasets  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402

_TEXTURES = 'textures'
_SIDES = (128, 201)  # range of the sides of enlarged images, in pixels
_TESTS = 500  # number of test photos


class Result(NamedTuple):
    """The minutes of processor time of each model, and the models' test accuracies in percent."""
    minutes: float
    preset: float
    keras: float


def enlarge(name, data_dir, folder, part, count):
    """Writes the first images of a part of a data set as JPEGs of varied sizes into a folder for each class."""
    data = datasets.prepare(name, data_dir, part)
    random = np.random.default_rng(0)
    labels = np.fromfile(data.files[0], np.uint8).reshape(-1, data.record_bytes)[:, data.label_bytes - 1]
    for number, (pixels, label) in enumerate(zip(data.images(count), labels)):
        path = os.path.join(folder, data.classes[label], f'{number:05}.jpg')
        os.makedirs(os.path.dirname(path), exist_ok=True)
        side = int(random.integers(*_SIDES))
        Image.fromarray(pixels).resize((side, side), Image.BICUBIC).save(path, quality=90)


def write(name, options, folder):
    """Writes a set, divided into train/ and test/."""
    for part, count, first in ((datasets.TRAIN, options.count, 0), (datasets.TEST, _TESTS, options.count)):
        if name == _TEXTURES:
            generated_photos.write(os.path.join(folder, part), count, first)
        else:
            enlarge(name, options.data_dir, os.path.join(folder, part), part, count)


def measure(folder, seed, setting):
    """Trains with the preset to its end, and with Keras for the same time; returns a Result."""
    with tempfile.TemporaryDirectory() as scratch:
        train_dir = os.path.join(scratch, 'run')
        before = processor_seconds()
        harness.output_of('multi_gpu_train.py', f'--dataset={folder}', f'--data_dir={scratch}/data',
                          f'--train_dir={train_dir}', f'--seed={seed}', '--preset=photos', *setting.split())
        seconds = processor_seconds() - before
        accuracy = harness.evaluated(train_dir)['accuracy']
    output = harness.output_of('benchmarks/peers/keras_photos.py', f'--folder={folder}', f'--seconds={seconds}',
                               f'--seed={seed}')
    return Result(seconds / 60, 100 * accuracy, 100 * float(re.search(r'accuracy=([\d.]+)', output).group(1)))


def processor_seconds():
    """Returns the processor time in seconds of all ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def table(results):
    """Returns the lines of a Markdown table of results {set: [Result]}."""
    def means(results):
        return [harness.spread([result and result[i] for result in results], 1, statistics.mean) for i in range(3)]
    return harness.table(['set', 'minutes', '`--preset=photos`, %', 'Keras, %'],
                         [[name, *means(runs)] for name, runs in results.items()])


def main():
    """Measures all sets with all seeds, and prints a table."""
    parser = harness.parser(__doc__, seeds=3)
    choices = (_TEXTURES, *DATASETS)
    parser.add_argument('--sets', type=harness.listed(str, choices), default=[_TEXTURES], metavar='SET,SET',
                        help=f"sets: {', '.join(choices)} (default: {_TEXTURES})")
    parser.add_argument('--count', type=flags.at_least(100), default=2000, metavar='N',
                        help='number of training photos (default: %(default)s)')
    parser.add_argument('--setting', default='', metavar='FLAGS', help='flags added to --preset=photos, in quotes')
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.sets:
            write(name, options, os.path.join(scratch, name))
        harness.measure(options, options.sets, lambda name, seed: measure(
            os.path.join(scratch, name), seed, options.setting), table)


if __name__ == '__main__':
    sys.exit(program.run(main))
