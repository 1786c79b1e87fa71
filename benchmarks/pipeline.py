#!/usr/bin/env python3
"""Towers as the micro-batches of a pipeline: how long its devices wait, and how many towers each holds.

    python benchmarks/pipeline.py --dataset=shapes --data_dir=/tmp/shapes_data

In the first table the parts of a tower sleep instead of computing, and each device is locked while it sleeps, so it
does one thing at a time, as a GPU does. Its cells have the bubble, the share of a step in which a device waits:
measured (1 - M t / step, for M towers whose part on a device takes t) and, in brackets, expected
((P - 1) / (M + P - 1)); then for each device the most towers of which it held activations at a time. The second table
has the images/s of the classic network, which does compute, with 8 towers of 16.

All cells are measured in turn, for several rounds; medians, with the lowest and highest figures.
"""
import contextlib
import os
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cifar10.base import startup  # noqa: E402

startup.start_tensorflow()

import tensorflow.compat.v1 as tf  # noqa: E402

from benchmarks import harness  # noqa: E402
from cifar10.base.registry import UPDATE_MODES  # noqa: E402
from cifar10.model.parts import divided, next_part  # noqa: E402
from cifar10.parallel.devices import choose as choose_devices  # noqa: E402
from cifar10.parallel.session_config import session_config  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402

FORWARD, BACKWARD = 'forward', 'backward'
SECONDS = {FORWARD: 0.04, BACKWARD: 0.08}  # that a part sleeps
# Row: --num_gpus and --gpus_per_tower.
ROWS = {'a device for all towers': (1, 1), 'two devices, the towers divided between them': (2, 1),
        'two devices, each tower divided over both': (2, 2)}


class Sleepers:
    """Towers whose parts sleep, one part on each device of a tower.

    Args:
      devices: the Devices of the towers.
      seconds: for each device of a tower {FORWARD, BACKWARD: the seconds that it sleeps}.
      locked: whether a device does one thing at a time.

    Attributes:
      step: the `Step` that the update mode built.
      visits: (FORWARD or BACKWARD, tower, number of the device) -> when it began and ended to sleep, for the last step.
    """

    def __init__(self, devices, seconds, locked=True):
        self.visits = {}
        self._devices = devices
        self._seconds = seconds
        self._locks = {device: threading.Lock() if locked else contextlib.nullcontext()
                       for group in devices.groups for device in group}
        self._mode = UPDATE_MODES.load('parameter_server')(devices)
        self.step = self._mode.build(
            self._tower, lambda: tf.train.GradientDescentOptimizer(0.0), tf.train.get_or_create_global_step())

    def session(self):
        """Returns a session with a thread for each part that sleeps or waits for its device, its variables set."""
        config = session_config(self._devices)
        config.inter_op_parallelism_threads = 4 + 2 * self._devices.num_towers * len(self._seconds)
        config.use_per_session_threads = True
        session = tf.Session(config=config)
        session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())
        session.run(self.step.train_ops)  # the first step is slow: TensorFlow optimises the graph
        return session

    def held(self):
        """Returns for each device of a tower of how many towers at most it held activations in the last step."""
        most = []
        for s in range(len(self._seconds)):
            changes = [(self.visits[kind, k, s][kind == BACKWARD], 1 if kind == FORWARD else -1)
                       for kind in SECONDS for k in range(self._devices.num_towers)]
            held = [0]
            for _, change in sorted(changes):
                held.append(held[-1] + change)
            most.append(max(held))
        return most

    def _tower(self, k, scope):
        parts = len(self._seconds)
        x = tf.placeholder_with_default(tf.ones([]), [])
        self._mode.time(k, [])
        with divided(self._devices.parts[k], parts, self._mode.gate(k)):
            for s in range(parts):
                x = self._part(next_part(x) if s else x, k, s)
        return dict(total_loss=tf.square(x))  # so that the way back needs the last part's result

    def _part(self, x, k, s):
        """Returns x times a variable, after tower k's part on its device number s has slept, forward and backward."""
        weight = tf.get_variable(f'part_{s}', [], initializer=tf.ones_initializer())

        @tf.custom_gradient
        def asleep(x):
            return self._sleep(x, FORWARD, k, s), lambda dy: self._sleep(dy, BACKWARD, k, s)
        return asleep(x * weight)

    def _sleep(self, x, kind, k, s):
        def sleep(value):
            with self._locks[self._devices.parts[k][s]]:
                begin = time.perf_counter()
                time.sleep(self._seconds[s][kind])
                self.visits[kind, k, s] = begin, time.perf_counter()
            return value
        return tf.ensure_shape(tf.numpy_function(sleep, [x], x.dtype), x.shape)


def measure_bubble(parts, towers, steps=3):
    """Returns (the median bubble of some steps in percent, for each device the most towers that it held)."""
    devices = choose_devices(parts, 'cpu', parts).with_towers(towers)
    with tf.Graph().as_default():
        sleepers = Sleepers(devices, [SECONDS] * parts)
        bubbles = []
        with sleepers.session() as session:
            for _ in range(steps):
                begin = time.perf_counter()
                session.run(sleepers.step.train_ops)
                bubbles.append(100 * (1 - towers * sum(SECONDS.values()) / (time.perf_counter() - begin)))
        return (statistics.median(bubbles), *sleepers.held())


def measure_speed(options, row):
    """Returns the images/s of the classic network."""
    num_gpus, per_tower = ROWS[row]
    return harness.training_speed(options, options.steps, '--tower_device=cpu', '--num_towers=8', '--batch_size=16',
                                  f'--num_gpus={num_gpus}', f'--gpus_per_tower={per_tower}')


def tables(results, options):
    """Returns the lines of two Markdown tables of results {cell: figures}."""
    def cell(parts, towers):
        figures = [figure for figure in results[parts, towers] if figure is not None]
        bubbles, *counts = zip(*figures) if figures else [[]]
        held = ', '.join(str(max(count)) for count in counts)
        return f'{harness.spread(bubbles, 1)} ({100 * (parts - 1) / (towers + parts - 1):.1f}); {held}'
    counts = [f"{towers} tower{'s' * (towers > 1)}" for towers in options.towers]
    bubbles = harness.table(['parts, devices', *counts],
                            [[parts, *(cell(parts, towers) for towers in options.towers)] for parts in options.parts])
    speeds = harness.table(['8 towers of 16', 'images/s'], [[row, harness.spread(results[row])] for row in ROWS])
    return [*bubbles, '', *speeds]


def main():
    """Measures all cells and reports them."""
    parser = harness.parser(__doc__.splitlines()[0], rounds=3)
    parser.add_argument('--parts', type=harness.listed(flags.at_least(2)), default=[2, 3], metavar='P,...',
                        help='numbers of parts, each on a device (default: 2,3)')
    parser.add_argument('--towers', type=harness.listed(flags.at_least(1)), default=[1, 2, 4, 8], metavar='M,...',
                        help='numbers of towers (default: 1,2,4,8)')
    parser.add_argument('--steps', type=flags.at_least(2), default=120, metavar='N',
                        help='steps of the classic network in each measurement (default: %(default)s)')
    options = parser.parse_args()
    harness.check(options)
    cells = [*[(parts, towers) for parts in options.parts for towers in options.towers], *ROWS]
    results = harness.measure(cells, options.rounds, lambda cell: measure_bubble(*cell) if isinstance(cell, tuple)
                              else measure_speed(options, cell))
    harness.report(options, tables(results, options), figures=results)
    harness.end(results)


if __name__ == '__main__':
    sys.exit(program.run(main))
