#!/usr/bin/env python3
"""Fits y = x^2 with the towers and updates of the CIFAR-10 program: data parallelism in its smallest form.

    python examples/parabola.py --towers=3
    python -m cifar10 local_cluster --workers=3 -- python examples/parabola.py

50 points in [-2, 2] are split over the towers, and a network of 1-5-1 units fits them by gradient descent. The
towers run on CPU devices, or in a cluster of processes, where the first process takes the mean. After 0 updates and
after every 50th it prints the loss and, in the synchronous modes, each tower's gradient of one variable and their mean.
(In `async`, after the first update at or past each 50th that tower 0 makes.)
"""
import os
import sys
import zlib

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cifar10.base import startup  # noqa: E402
from cifar10.programs import program  # noqa: E402

startup.start_tensorflow()

import tensorflow.compat.v1 as tf  # noqa: E402

from cifar10.base import directories  # noqa: E402
from cifar10.base.errors import UsageError  # noqa: E402
from cifar10.base.registry import UPDATE_MODES  # noqa: E402
from cifar10.cluster import member, membership  # noqa: E402
from cifar10.parallel import gpus  # noqa: E402
from cifar10.parallel.asynchronous import AsyncWorkers  # noqa: E402
from cifar10.parallel.devices import choose as choose_devices  # noqa: E402
from cifar10.parallel.session_config import session_config  # noqa: E402
from cifar10.programs import flags  # noqa: E402
from cifar10.run.failures import plain_errors  # noqa: E402
from cifar10.run.reporter import due  # noqa: E402

POINTS = 50
HIDDEN = 5
RATE = 1e-2
EVERY = 50  # updates between two reports
MODES = ('parameter_server', 'replicated', 'async')


def points():
    """Returns (x, y), float32 [50, 1] each."""
    x = np.linspace(-2, 2, POINTS, dtype=np.float32)[:, None]
    return x, x ** 2


def network(x):
    """Builds the network: 1 input, 5 tanh units, 1 linear output; float32 [n, 1] -> float32 [n, 1]."""
    def weights(name, shape):
        def initial_value(shape, dtype, partition_info=None):
            return tf.random.stateless_normal(shape, [0, zlib.crc32(name.encode())], dtype=dtype)
        return tf.get_variable(name, shape, initializer=initial_value)

    hidden = tf.tanh(x @ weights('w1', [1, HIDDEN]) + weights('b1', [HIDDEN]))
    return hidden @ weights('w2', [HIDDEN, 1]) + weights('b2', [1])


def fit(devices, steps, mode, before_session=None):
    """Fits the parabola and returns the fitted values at the 50 points, float32 [50, 1].

    Args:
      devices: a `parallel.devices.Devices`; the points are split over its towers, evenly or not.
      steps: total number of updates.
      mode: one of MODES.
      before_session: function that is called before the session is made, or None. In a cluster it waits
        until all processes answer.
    """
    x, y = points()
    count = devices.num_towers
    if count > POINTS:
        raise UsageError(f'{POINTS} points can be split over 1 to {POINTS} towers, not over {count}; use fewer '
                         'towers')
    with plain_errors(), tf.Graph().as_default(), tf.device(devices.home):
        update = UPDATE_MODES.load(mode)(devices)
        turns = tf.data.make_initializable_iterator(tf.data.Dataset.range(steps * update.batches))
        tower_gradients = []  # each tower's gradient of b2, the bias of the output, float32 [1]

        def tower_fn(k, scope):
            part = slice(k * POINTS // count, (k + 1) * POINTS // count)
            # Asynchronous towers take turns until none is left, as the trainer's towers take batches. Together
            # they make exactly `steps` updates.
            with tf.control_dependencies([turns.get_next()]):
                # The sum over a tower's points, times K/N: then the mean over the K towers is the mean over all
                # N points, even if the towers have different numbers of points.
                error = tf.reduce_sum(tf.square(network(tf.constant(x[part])) - y[part]))
                total_loss = error * (count / POINTS)
                with tf.variable_scope(tf.get_variable_scope(), reuse=True):
                    tower_gradients.extend(tf.gradients(total_loss, tf.get_variable('b2', [1])))
                return dict(total_loss=total_loss)

        global_step = tf.train.create_global_step()
        built = update.build(tower_fn, lambda: tf.train.GradientDescentOptimizer(RATE), global_step)
        with tf.control_dependencies([built.train_ops[0]]):
            train_step = global_step.read_value()
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            fitted = network(tf.constant(x))
        loss = tf.reduce_mean(tf.square(fitted - y))
        initialise = tf.global_variables_initializer()
        # Runs after `initialise`: in `replicated`, the other devices' copies are local variables, which start
        # from the first device's values.
        start = tf.group(tf.local_variables_initializer(), turns.initializer)
        if before_session:
            before_session()
        with tf.Session(devices.target, config=session_config(devices)) as session:
            session.run(initialise)
            session.run(start)
            # In `async`, each further tower steps in a thread of its own. In the other modes there are no threads.
            workers = AsyncWorkers(built.train_ops[1:])
            # Asynchronous gradients have no mean: each is applied by itself.
            shown = tower_gradients if update.synchronous else []
            step, line = 0, describe(*session.run([global_step, loss]))  # before any thread starts
            with workers.stepping(session):
                while step < steps:
                    workers.raise_error()
                    if line and not shown:
                        print(line)
                    before = step
                    try:
                        step, gradients = session.run([train_step, shown])
                    except tf.errors.OutOfRangeError:
                        break  # another tower's thread took the last turn
                    if line and shown:
                        print(line + describe_gradients(gradients))
                    line = ''
                    if due(EVERY, before, step) and step < steps:
                        with workers.paused():  # the number and the loss are of one moment
                            updates, value = session.run([global_step, loss])
                        line = describe(updates, value) if updates < steps else ''
            print(describe(*session.run([global_step, loss])))
            return session.run(fitted)


def describe(updates, loss):
    """Returns the line for the loss after a number of updates."""
    return f'after {updates:4} updates, loss = {loss:.6f}'


def describe_gradients(gradients):
    """Returns the phrase for the towers' gradients of b2, K x float32 [1], and for their mean."""
    values = ' '.join(f'{gradient[0]:.4f}' for gradient in gradients)
    return f', gradient of b2: {values}, mean {np.mean(gradients):.4f}'


def plot(path, fitted):
    """Draws the points and the fit into a PNG file."""
    from matplotlib import pyplot
    x, y = points()
    figure, axes = pyplot.subplots(figsize=(5, 4))
    axes.plot(x, y, 'o', markersize=3, label='y = x²')
    axes.plot(x, fitted, label='fit')
    axes.legend()
    figure.savefig(path, dpi=120, format='png')


def main():
    """Reads the flags and fits."""
    parser = flags.Parser(__doc__.splitlines()[0])
    parser.add_argument('--towers', type=flags.at_least(1), default=1, metavar='K',
                        help='towers of each process (default: 1)')
    parser.add_argument('--steps', type=flags.at_least(1), default=2000, metavar='STEPS',
                        help='number of updates (default: 2000)')
    parser.add_argument('--variable_update', choices=MODES, default=MODES[0],
                        help='how gradients become updates (default: %(default)s)')
    parser.add_argument('--plot', metavar='FILE', help='PNG file to draw the fit into; needs matplotlib')
    flags.add_cluster(parser)
    arguments = parser.parse_args()
    if arguments.plot:
        directories.check_plot(arguments.plot)

    def run(devices, before_session=None):
        fitted = fit(devices, arguments.steps, arguments.variable_update, before_session)
        if arguments.plot:
            plot(arguments.plot, fitted)
            print(f'written    {arguments.plot}')

    local_devices = choose_devices(arguments.towers, 'cpu')
    cluster = membership.resolve(arguments)
    if cluster is None:
        gpus.claim(local_devices.num_gpus)
        run(local_devices)
    else:
        member.take_part(cluster, local_devices, run, arguments.cluster_timeout_secs,
                         not UPDATE_MODES.load(arguments.variable_update).has_copies)


if __name__ == '__main__':
    sys.exit(program.run(main))
