#!/usr/bin/env python3
"""Measures the idle time of the devices of a pipeline with towers as micro-batches.

    python benchmarks/pipeline.py

The parts of a tower sleep instead of computing, and each device is locked while it sleeps, so it does one thing at a
time, like a GPU. Prints the bubble, the fraction of a step that a device spends waiting: measured (1 - M t /
step, with M towers and the time t of a part), as the median of some steps with the lowest and highest, and by the
formula (P - 1) / (M + P - 1).
"""
import contextlib
import os
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
SECONDS = {FORWARD: 0.04, BACKWARD: 0.08}  # sleep of a part
PARTS = [2, 3]
TOWERS = [1, 2, 4, 8]


class Sleepers:
    """Towers with sleeping parts, one part on each device of a tower.

    Args:
      devices: the Devices of the towers.
      seconds: for each device of a tower {FORWARD, BACKWARD: seconds of sleep}.
      locked: whether a device does one thing at a time.

    Attributes:
      step: the `Step` of the update mode.
      visits: (FORWARD or BACKWARD, tower, index of the device) -> (begin, end) of the sleep in the last step.
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
        """Returns a session with initialised variables and enough threads for all sleeping and waiting parts."""
        config = session_config(self._devices)
        config.inter_op_parallelism_threads = 4 + 2 * self._devices.num_towers * len(self._seconds)
        config.use_per_session_threads = True
        session = tf.Session(config=config)
        session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())
        session.run(self.step.train_ops)  # the first step is slow: TensorFlow optimises the graph
        return session

    def _tower(self, k, scope):
        parts = len(self._seconds)
        x = tf.placeholder_with_default(tf.ones([]), [])
        with divided(self._devices.devices_of(k), parts, self._mode.gate(k)):
            for s in range(parts):
                x = self._part(next_part(x) if s else x, k, s)
        return dict(total_loss=tf.square(x))  # the backward pass needs the last part's result

    def _part(self, x, k, s):
        """Returns x times a variable; tower k's part on its device s sleeps in the forward and backward pass."""
        weight = tf.get_variable(f'part_{s}', [], initializer=tf.ones_initializer())

        @tf.custom_gradient
        def asleep(x):
            return self._sleep(x, FORWARD, k, s), lambda dy: self._sleep(dy, BACKWARD, k, s)
        return asleep(x * weight)

    def _sleep(self, x, kind, k, s):
        def sleep(value):
            with self._locks[self._devices.devices_of(k)[s]]:
                begin = time.perf_counter()
                time.sleep(self._seconds[s][kind])
                self.visits[kind, k, s] = begin, time.perf_counter()
            return value
        return tf.ensure_shape(tf.numpy_function(sleep, [x], x.dtype), x.shape)


def measure(parts, towers, steps):
    """Returns the bubbles of `steps` steps, in percent."""
    devices = choose_devices(parts, 'cpu', parts).with_towers(towers)
    with tf.Graph().as_default():
        sleepers = Sleepers(devices, [SECONDS] * parts)
        bubbles = []
        with sleepers.session() as session:
            for _ in range(steps):
                begin = time.perf_counter()
                session.run(sleepers.step.train_ops)
                bubbles.append(100 * (1 - towers * sum(SECONDS.values()) / (time.perf_counter() - begin)))
        return bubbles


def main():
    """Measures all numbers of parts and towers, and prints a table."""
    parser = flags.Parser(__doc__)
    parser.add_argument('--steps', type=flags.at_least(1), default=9, metavar='N',
                        help='measured steps (default: %(default)s)')
    options = parser.parse_args()
    rows = []
    for parts in PARTS:
        for towers in TOWERS:
            bubbles = measure(parts, towers, options.steps)
            expected = 100 * (parts - 1) / (towers + parts - 1)
            rows.append([parts, towers, harness.spread(bubbles, 1), f'{expected:.1f}'])
    print('\n'.join(harness.table(['parts, devices', 'towers', 'bubble in percent', 'by the formula'], rows)))


if __name__ == '__main__':
    sys.exit(program.run(main))
