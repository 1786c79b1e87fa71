#!/usr/bin/env python3
"""How many photos a second the input pipeline reads and augments, beside tf.data's usual one and Keras'.

    python benchmarks/decoding.py --data_dir=/tmp/cifar10_data

Writes photos of 500x375 pixels first, made of CIFAR's test images, with a grain that makes their files as large as
ImageNet's. All pipelines read them, whole epochs in a shuffled order, in batches of 64: this program's with
`resized_crop`, from photos that it has prepared once; tf.data's with decode_and_crop_jpeg, a random resized crop and
AUTOTUNE; and Keras' image_dataset_from_directory, which resizes whole photos and augments nothing. How many photos a
second are prepared is measured as well.

All cells are measured in turn, for several rounds; medians, with the lowest and highest figures.
"""
import os
import re
import shutil
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np  # noqa: E402
from PIL import Image  # noqa: E402

from cifar10.base import startup  # noqa: E402

startup.start_tensorflow()

import tensorflow.compat.v1 as tf  # noqa: E402

from benchmarks import harness  # noqa: E402
from cifar10.base.graphs import cpu_session  # noqa: E402
from cifar10.base.registry import AUGMENTATIONS  # noqa: E402
from cifar10.data import pipeline, records  # noqa: E402
from cifar10.parallel import gpus  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402

BATCH = 64
SHAPE = (375, 500)  # of the photos
GRAIN = 12  # standard deviation of what is added to each pixel
QUALITY = 95
SIZES = [96, 224]
PREPARING = 'this program, preparing'
PIPELINES = {'this program': None, 'tf.data': 'tf_data', 'Keras': 'keras'}


def write_photos(options, folder):
    """Writes photos of all classes; returns the mean size of their files in bytes."""
    data = records.prepare(options.dataset, options.data_dir, records.TEST)
    random = np.random.default_rng(0)
    sizes = []
    rows = np.fromfile(data.files[0], np.uint8, options.photos * data.record_bytes).reshape(-1, data.record_bytes)
    for i, row in enumerate(rows):
        image = Image.fromarray(row[data.label_bytes:].reshape(3, 32, 32).transpose(1, 2, 0))
        pixels = np.asarray(image.resize(SHAPE[::-1], Image.BICUBIC)) + random.normal(0, GRAIN, [*SHAPE, 3])
        name = data.classes[row[data.label]]
        # Every class must have a photo for testing, which is not read here.
        part = records.TRAIN if os.path.isdir(os.path.join(folder, records.TEST, name)) else records.TEST
        path = os.path.join(folder, part, name, f'{i}.jpg')
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=QUALITY)
        sizes.append(os.path.getsize(path))
    return statistics.mean(sizes)


def prepare(options, folder, size):
    """Prepares the photos anew; returns how many a second."""
    for name in os.listdir(folder):
        if name.endswith((f'-{size}px', f'-{size}px-photos')):
            shutil.rmtree(os.path.join(folder, name))
    begin = time.perf_counter()
    records.prepare(f'{folder}/', '', image_size=size)
    return options.photos / (time.perf_counter() - begin)


def ours(options, folder, size):
    """Returns the photos/s of this program's input pipeline."""
    data = records.prepare(f'{folder}/', '', image_size=size)
    augmentation = AUGMENTATIONS.load('resized_crop')(None, None, 0, size)
    gpus.claim(0)  # which tf.data would take
    with cpu_session() as session:
        source = pipeline.Source(data, ['/cpu:0'], 1, augmentation, BATCH, seed=0)
        next_batch, starts = source.batches(tf.constant(0, tf.int64), tf.constant(10 ** 9, tf.int64))
        batch = [tensor.op for tensor in next_batch(0)]
        session.run(starts)
        for _ in range(options.batches // 3):
            session.run(batch)
        begin = time.perf_counter()
        for _ in range(options.batches):
            session.run(batch)
        return options.batches * BATCH / (time.perf_counter() - begin)


def measure(options, folder, cell):
    """Returns the photos/s of a cell: (what, size)."""
    what, size = cell
    if what == PREPARING:
        return prepare(options, folder, size)
    if PIPELINES[what] is None:
        return ours(options, folder, size)
    train = os.path.join(folder, records.TRAIN)
    output = harness.output_of(
        'benchmarks/peers/input_pipelines.py', f'--pipeline={PIPELINES[what]}', f'--folder={train}', f'--size={size}',
        f'--batch_size={BATCH}', f'--batches={options.batches}', f'--warmup={options.batches // 3}', timeout=900)
    return float(re.search(r'images_per_sec=([\d.]+)', output).group(1))


def table(results, sizes):
    """Returns the lines of a Markdown table of results {(what, size): figures}."""
    lines = [f"| photos/s | {' | '.join(f'{size}x{size}' for size in sizes)} |", '|---|' + '---|' * len(sizes)]
    for what in [*PIPELINES, PREPARING]:
        lines.append(f"| {what} | {' | '.join(harness.spread(results[what, size]) for size in sizes)} |")
    return lines


def main():
    """Writes the photos, measures all cells, prints the table, writes JSON."""
    parser = harness.parser(__doc__.splitlines()[0], rounds=5)
    parser.add_argument('--photos', type=flags.at_least(200), default=2000, metavar='N',
                        help='photos to write (default: %(default)s)')
    parser.add_argument('--sizes', type=harness.listed(flags.at_least(records.LARGEST + 1)), default=SIZES,
                        metavar='S,...', help='heights and widths (default: 96,224)')
    parser.add_argument('--batches', type=flags.at_least(3), default=30, metavar='N',
                        help=f'batches of {BATCH} in each measurement (default: %(default)s)')
    options = parser.parse_args()
    harness.check(options)
    with tempfile.TemporaryDirectory() as folder:
        mean = write_photos(options, folder)
        print(f'{options.photos} photos of {SHAPE[1]}x{SHAPE[0]}, {mean / 1000:.0f} kB each', file=sys.stderr)
        cells = [(what, size) for what in [PREPARING, *PIPELINES] for size in options.sizes]
        results = harness.measure(cells, options.rounds, lambda cell: measure(options, folder, cell))
    print('\n'.join(table(results, options.sizes)))
    if options.json:
        with_string_keys = {' '.join(map(str, cell)): figures for cell, figures in results.items()}
        harness.write_json(options.json, flags=vars(options), figures=with_string_keys, mean_bytes=mean)
    harness.end(results)


if __name__ == '__main__':
    sys.exit(program.run(main))
