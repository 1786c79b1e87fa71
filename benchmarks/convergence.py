#!/usr/bin/env python3
"""Does waiting for all towers pay? Test accuracy of synchronous and asynchronous training.

    python benchmarks/convergence.py --data_dir=/tmp/cifar10_data --images=76800 --seeds=3

Trains the classic network with 4 towers of 32 images, with `parameter_server` and with `async`, both with
equally fast towers and with the last tower slowed down. Compares the runs after equal numbers of images and
after equal times (the duration of the faster mode's run). Prints a Markdown table of means with their spread
over the seeds, and writes JSON. Each run is a process of its own.
"""
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cifar10.base import startup  # noqa: E402

startup.start_tensorflow()

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

from benchmarks import harness  # noqa: E402
from cifar10.base.errors import UsageError  # noqa: E402
from cifar10.data import records  # noqa: E402
from cifar10.evaluation.evaluator import Validation  # noqa: E402
from cifar10.parallel import gpus  # noqa: E402
from cifar10.parallel.asynchronous import AsyncWorkers  # noqa: E402
from cifar10.parallel.devices import choose as choose_devices  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402
from cifar10.run.reporter import due  # noqa: E402
from cifar10.settings.training import train_settings  # noqa: E402
from cifar10.training.decide import decided  # noqa: E402
from cifar10.training.plan import plan_of  # noqa: E402
from cifar10.training.run import Run  # noqa: E402

MODES = ('parameter_server', 'async')
TOWERS = 4
BATCH = 32


def slowed(mode_class, seconds):
    """Returns a subclass of an update mode whose last tower pauses for `seconds` before each step."""
    def pause():
        time.sleep(seconds)
        return np.float32(0)

    class Slowed(mode_class):
        def build(self, tower_fn, make_optimizer, global_step, **options):
            def tower(k, scope):
                if k < self.devices.num_towers - 1:
                    return tower_fn(k, scope)
                with tf.device('/cpu:0'):
                    paused = tf.numpy_function(pause, [], tf.float32, stateful=True)
                with tf.control_dependencies([paused]):
                    return tower_fn(k, scope)
            return super().build(tower, make_optimizer, global_step, **options)
    return Slowed


def plan(options, mode, pause, seed):
    """Returns the Plan of a run whose last tower pauses for so many seconds before each step."""
    per_step = BATCH if mode == 'async' else BATCH * TOWERS
    config = train_settings(
        dataset=options.dataset, data_dir=options.data_dir, num_gpus=TOWERS, num_towers=TOWERS, batch_size=BATCH,
        seed=seed, max_steps=options.images // per_step, variable_update=mode, tower_device='cpu', precision='fp32')
    devices = choose_devices(TOWERS, 'cpu')
    gpus.claim(devices.num_gpus)
    data = records.prepare(options.dataset, options.data_dir)
    result = plan_of(decided(config, devices, before={}), data, devices)
    if pause:
        result = result._replace(mode=slowed(type(result.mode), pause)(result.devices))
    return result


def run(options, planned):
    """Trains once in this process; evaluates the moving averages now and then, with the clock stopped.

    Returns:
      A list of (images, seconds of training, test accuracy).
    """
    taken = Run(planned)
    test = records.prepare(options.dataset, options.data_dir, records.TEST)
    validation = Validation(planned.recipe, test, choose_devices(1, 'cpu'), use_ema=True)
    workers = AsyncWorkers(taken.graph.async_train_ops)
    curve, trained, begin = [], 0.0, None
    with taken.opened():
        def add_point(images):
            """Evaluates with the clock and the workers stopped."""
            nonlocal trained, begin
            trained += time.perf_counter() - begin
            curve.append((images, trained, validation.evaluate(taken.variables(validation.names)).precision))
            begin = time.perf_counter()

        with workers.stepping(taken.session):
            while taken.step < planned.last_step:
                workers.raise_error()
                before = taken.step * planned.examples_per_step
                try:
                    taken.take()
                except tf.errors.OutOfRangeError:
                    break  # the thread of another tower took the last batch
                if begin is None:
                    begin = time.perf_counter()  # the first step is a warm-up
                images = taken.step * planned.examples_per_step
                if due(options.every, before, images) and taken.step < planned.last_step:
                    with workers.paused():
                        add_point(images)
        add_point(options.images)
    return curve


def at(curve, column, value):
    """Returns the interpolated accuracy of a curve at a number of images (column 0) or seconds (column 1)."""
    return float(np.interp(value, [point[column] for point in curve], [point[2] for point in curve]))


def table(results):
    """Returns the lines of a Markdown table of results {(mode, slow): [curve]}; all curves end at the same images."""
    rows = []
    for slow in (False, True):
        seconds = min(curve[-1][1] for mode in MODES for curve in results[mode, slow])
        for mode in MODES:
            curves = results[mode, slow]
            after_images, after_seconds = (
                harness.mean_spread([100 * at(curve, column, value) for curve in curves], 1, '%')
                for column, value in ((0, curves[0][-1][0]), (1, seconds)))
            rate = statistics.median(curve[-1][0] / curve[-1][1] for curve in curves)
            rows.append(['one slowed' if slow else 'alike', f'`{mode}`', f'{rate:.0f}', after_images,
                         f'{after_seconds} of {seconds:.0f} s'])
    return harness.table(['towers', 'mode', 'images/s', 'after equal images', 'after equal seconds'], rows)


def label(mode, slow):
    """Returns the name of a combination in lines and in the JSON file."""
    return f'{mode}, one slowed' if slow else mode


def main():
    """Runs all combinations, one seed after the other, and prints the table."""
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument('--images', type=flags.at_least(TOWERS * BATCH), default=76800, metavar='N',
                        help='images of one run (default: %(default)s)')
    parser.add_argument('--every', type=flags.at_least(1), default=6400, metavar='N',
                        help='images between two evaluations (default: %(default)s)')
    parser.add_argument('--seeds', type=flags.at_least(1), default=3, metavar='N',
                        help='runs of each combination (default: %(default)s)')
    parser.add_argument('--pause', type=float, default=0.1, metavar='SECONDS',
                        help='pause of the slowed tower before each step (default: %(default)s)')
    parser.add_argument('--one', nargs=3, metavar=('MODE', 'PAUSE', 'SEED'),
                        help='a single run in this process; prints its curve as JSON')
    options = parser.parse_args()
    if options.images % (TOWERS * BATCH):
        raise UsageError(f'--images={options.images} is not a multiple of {TOWERS * BATCH} (four batches); use '
                         'one')
    harness.check(options)
    if options.one:
        mode, pause, seed = options.one
        print(json.dumps(run(options, plan(options, mode, float(pause), int(seed)))))
        return
    results = {(mode, slow): [] for mode in MODES for slow in (False, True)}
    for seed in range(options.seeds):
        for (mode, slow), curves in results.items():
            output = harness.output_of(
                'benchmarks/convergence.py', '--data_dir=' + options.data_dir, '--dataset=' + options.dataset,
                f'--images={options.images}', f'--every={options.every}',
                '--one', mode, str(options.pause if slow else 0), str(seed))
            curves.append(json.loads(output.splitlines()[-1]))
            _, seconds, accuracy = curves[-1][-1]
            print(f'seed {seed}, {label(mode, slow)}: {seconds:.0f} s, {100 * accuracy:.1f}%',
                  file=sys.stderr, flush=True)
    harness.report(options, table(results), curves={label(*cell): curves for cell, curves in results.items()})


if __name__ == '__main__':
    sys.exit(program.run(main))
