#!/usr/bin/env python3
"""Compares the test accuracy of synchronous and asynchronous training.

    python benchmarks/convergence.py --data_dir=/tmp/cifar10_data --images=76800 --seeds=3

Trains the classic network with 4 towers of 32 images, with `parameter_server` and with `async`, with equally fast
towers and with a slow last tower. Compares the runs after equal numbers of images and after equal times (the duration
of the faster mode's run). Prints a Markdown table of means, minimums and maximums over the seeds. Each run is a
separate process.
"""
import functools
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
from cifar10.data import datasets  # noqa: E402
from cifar10.evaluation.evaluator import Evaluator  # noqa: E402
from cifar10.evaluation.trained import ModelSession  # noqa: E402
from cifar10.parallel import gpus  # noqa: E402
from cifar10.parallel.devices import choose as choose_devices  # noqa: E402
from cifar10.parallel.stepper import Stepper  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402
from cifar10.settings.training import train_settings  # noqa: E402
from cifar10.training.decisions import decided  # noqa: E402
from cifar10.training.plan import plan_of  # noqa: E402
from cifar10.training.run import Run  # noqa: E402

MODES = ('parameter_server', 'async')
ALIKE, SLOWED = 'alike', 'one slowed'  # the speeds of the towers
TOWERS = 4
BATCH = 32
PAUSE = 0.1  # seconds that the slowed tower waits before each step


def slowed(mode_class):
    """Returns a subclass of an update mode whose last tower pauses before each step."""
    def pause():
        time.sleep(PAUSE)
        return np.float32(0)

    class Slowed(mode_class):
        def build(self, tower_fn, make_optimizer, global_step):
            def tower(k, scope):
                if k < self.devices.num_towers - 1:
                    return tower_fn(k, scope)
                with tf.device('/cpu:0'):
                    paused = tf.numpy_function(pause, [], tf.float32, stateful=True)
                with tf.control_dependencies([paused]):
                    return tower_fn(k, scope)
            return super().build(tower, make_optimizer, global_step)
    return Slowed


def plan(options, mode, speeds, seed):
    """Returns the Plan of a run."""
    per_step = BATCH if mode == 'async' else BATCH * TOWERS
    config = train_settings(
        dataset=options.dataset, data_dir=options.data_dir, num_gpus=TOWERS, num_towers=TOWERS, batch_size=BATCH,
        seed=seed, max_steps=options.images // per_step, variable_update=mode, tower_device='cpu', precision='fp32')
    devices = choose_devices(TOWERS, 'cpu')
    gpus.claim(devices.num_gpus)
    data = datasets.prepare(options.dataset, options.data_dir)
    result = plan_of(decided(config, devices, before={}), data, devices)
    if speeds == SLOWED:
        result = result._replace(mode=slowed(type(result.mode))(result.devices))
    return result


def run(options, planned):
    """Trains once in this process; evaluates the moving averages regularly, with the clock stopped.

    Returns:
      A list of (images, seconds of training, test accuracy).
    """
    training = Run(planned)
    test = datasets.prepare(options.dataset, options.data_dir, datasets.TEST)
    devices = choose_devices(1, 'cpu')
    validation = ModelSession(lambda: Evaluator(test, planned.recipe, devices.tower_devices, 500), devices,
                              use_ema=True)
    validation.session.run(validation.built.read)
    curve, trained, begin = [], 0.0, None
    with training.opened():
        def add_point(images):
            """Evaluates with the clock and the towers stopped."""
            nonlocal trained, begin
            trained += time.perf_counter() - begin
            validation.load(training.variables(validation.names_in(training.saved).values()))
            curve.append((images, trained, validation.built.run(validation.session, training.step).accuracy))
            begin = time.perf_counter()

        def step_of(tower, step):
            return functools.partial(training.run_step, step, thread=tower) if step <= planned.last_step else None

        def is_shown(step):
            images = step * planned.examples_per_step
            return images % options.every < planned.examples_per_step and step < planned.last_step

        with Stepper(len(training.graph.fetches)) as stepper:
            for _ in stepper.results(training.step, step_of, is_shown):
                training.step += 1
                if begin is None:
                    begin = time.perf_counter()  # the first step is a warm-up
                if is_shown(training.step):
                    add_point(training.step * planned.examples_per_step)
        add_point(options.images)
    return curve


def accuracy_at(curve, seconds):
    """Returns the interpolated accuracy of a curve after `seconds`."""
    return float(np.interp(seconds, [point[1] for point in curve], [point[2] for point in curve]))


def table(results):
    """Returns the lines of a Markdown table of results {(mode, speeds): [curve]} with equally many images."""
    rows = []
    for speeds in (ALIKE, SLOWED):
        seconds = min((curve[-1][1] for mode in MODES for curve in harness.present(results[mode, speeds])), default=0)
        for mode in MODES:
            curves = results[mode, speeds]
            rates = [curve and curve[-1][0] / curve[-1][1] for curve in curves]
            after_images = [curve and 100 * curve[-1][2] for curve in curves]
            after_seconds = [curve and 100 * accuracy_at(curve, seconds) for curve in curves]
            rows.append([speeds, f'`{mode}`', harness.spread(rates), harness.spread(after_images, 1, statistics.mean),
                         f'{harness.spread(after_seconds, 1, statistics.mean)}; {seconds:.0f} s'])
    return harness.table(['towers', 'mode', 'images/s', '% after equal images', '% after equal seconds'], rows)


def measured(options, mode, speeds, seed):
    """Returns the curve of a run in a new process."""
    output = harness.output_of(
        'benchmarks/convergence.py', '--data_dir=' + options.data_dir, '--dataset=' + options.dataset,
        f'--images={options.images}', f'--every={options.every}', '--one', mode, speeds, str(seed))
    return json.loads(output.splitlines()[-1])


def main():
    """Runs all combinations, seed by seed, and prints the table."""
    parser = harness.parser(__doc__, seeds=3)
    parser.add_argument('--images', type=flags.at_least(TOWERS * BATCH), default=76800, metavar='N',
                        help='images of each run (default: %(default)s)')
    parser.add_argument('--every', type=flags.at_least(1), default=6400, metavar='N',
                        help='images between two evaluations (default: %(default)s)')
    parser.add_argument('--one', nargs=3, metavar=('MODE', 'SPEEDS', 'SEED'),
                        help='train once in this process; print the curve as JSON')
    options = parser.parse_args()
    if options.images % (TOWERS * BATCH):
        raise UsageError(f'--images={options.images} is not a multiple of {TOWERS * BATCH} (four batches); use a '
                         'multiple')
    harness.check(options)
    if options.one:
        mode, speeds, seed = options.one
        print(json.dumps(run(options, plan(options, mode, speeds, int(seed)))))
        return
    cells = [(mode, speeds) for mode in MODES for speeds in (ALIKE, SLOWED)]
    harness.measure(options, cells, lambda cell, seed: measured(options, *cell, seed), table)


if __name__ == '__main__':
    sys.exit(program.run(main))
