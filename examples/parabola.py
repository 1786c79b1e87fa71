#!/usr/bin/env python3
"""Fits y = x^2 with the towers and updates of the CIFAR-10 program: data parallelism in its smallest form.

    python examples/parabola.py --alone
    python examples/parabola.py --towers=3
    python -m cifar10 local_cluster --workers=3 -- python examples/parabola.py

A network of 1-5-1 units fits 50 points in [-2, 2] by gradient descent. `alone` is a script for one device. `network`
and `build` are the same fit in parallel, with the same losses; their comments explain the differences. The towers run
on CPU devices, or in a cluster, where the first process computes the mean. The program prints the loss before the first
and after every 50th update and, in the synchronous modes, each tower's gradient of one variable and their mean.
"""
import functools
import os
import sys
import zlib

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cifar10.base import startup  # noqa: E402
from cifar10.programs import program  # noqa: E402

if status := program.run(startup.start_tensorflow):
    sys.exit(status)

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

from cifar10.base import directories  # noqa: E402
from cifar10.base.errors import UsageError  # noqa: E402
from cifar10.base.registry import UPDATE_MODES  # noqa: E402
from cifar10.cluster import member, membership  # noqa: E402
from cifar10.parallel import gpus  # noqa: E402
from cifar10.parallel.devices import choose as choose_devices  # noqa: E402
from cifar10.parallel.session_config import session_config  # noqa: E402
from cifar10.parallel.stepper import Stepper  # noqa: E402
from cifar10.programs import flags  # noqa: E402
from cifar10.run.failures import plain_errors  # noqa: E402

POINTS = 50
HIDDEN = 5
RATE = 1e-2
EVERY = 50  # updates between two reports
MODES = ('parameter_server', 'replicated', 'async')


def points():
    """Returns (x, y), float32 [50, 1] each."""
    x = np.linspace(-2, 2, POINTS, dtype=np.float32)[:, None]
    return x, x ** 2


def normal(name, shape):
    """Returns the initial values of a variable, which depend on its name."""
    return tf.random.stateless_normal(shape, [0, zlib.crc32(name.encode())])


def alone(steps):
    """Fits the parabola on one device, without towers; returns the fitted values at the points, float32 [50, 1]."""
    def add_layer(number, inputs, in_size, out_size, activation=None):
        weights = tf.Variable(normal(f'w{number}', [in_size, out_size]))
        biases = tf.Variable(normal(f'b{number}', [out_size]))
        outputs = inputs @ weights + biases
        return activation(outputs) if activation else outputs

    x, y = points()
    hidden = add_layer(1, x, 1, HIDDEN, tf.tanh)
    fitted = add_layer(2, hidden, HIDDEN, 1)
    loss = tf.reduce_mean(tf.square(fitted - y))
    train_step = tf.train.GradientDescentOptimizer(RATE).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for step in range(steps):
            if step % EVERY == 0:
                print(describe(step, session.run(loss)))
            session.run(train_step)
        print(describe(steps, session.run(loss)))
        return session.run(fitted)


def network(x):
    """Builds the network: 1 input, 5 tanh units, 1 linear output; float32 [n, 1] -> float32 [n, 1].

    `tf.get_variable` shares the variables between towers by name; `tf.Variable` would create separate variables.
    """
    def weights(name, shape):
        def initial_value(shape, dtype, partition_info=None):
            return normal(name, shape)
        return tf.get_variable(name, shape, initializer=initial_value)

    hidden = tf.tanh(x @ weights('w1', [1, HIDDEN]) + weights('b1', [HIDDEN]))
    return hidden @ weights('w2', [HIDDEN, 1]) + weights('b2', [1])


def build(update, count):
    """Builds the towers and their updates in the current graph.

    `tower_fn` builds each tower with the loss of its share of the points. Instead of `minimize`, an update mode
    averages and applies the gradients.

    Args:
      update: the update mode.
      count: number of towers that share the points, evenly or not.

    Returns:
      (the `Step` of the update mode, each tower's gradient of b2, float32 [1]).
    """
    x, y = points()
    gradients = []

    def tower_fn(k, scope):
        part = slice(k * POINTS // count, (k + 1) * POINTS // count)
        # The sum over a tower's points, times K/N, so the mean over the K towers is the mean over all N points, even
        # if the towers have different numbers of points.
        error = tf.reduce_sum(tf.square(network(tf.constant(x[part])) - y[part]))
        total_loss = error * (count / POINTS)
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            gradients.extend(tf.gradients(total_loss, tf.get_variable('b2', [1])))  # the bias of the output
        return dict(total_loss=total_loss)

    step = update.build(tower_fn, lambda: tf.train.GradientDescentOptimizer(RATE), tf.train.create_global_step())
    return step, gradients


def fit(devices, steps, mode, before_session=None):
    """Fits the parabola; returns the fitted values at the 50 points, float32 [50, 1].

    Args:
      devices: a `parallel.devices.Devices`; the points are split over its towers, evenly or not.
      steps: total number of updates.
      mode: one of MODES.
      before_session: function to call before the session is created, or None. In a cluster it waits until all
        processes answer.
    """
    if devices.num_towers > POINTS:
        raise UsageError(f'{devices.num_towers} towers are too many for {POINTS} points; use at most {POINTS} towers')
    with plain_errors(), tf.Graph().as_default(), tf.device(devices.home):
        update = UPDATE_MODES.load(mode)(devices)
        step, gradients = build(update, devices.num_towers)
        global_step = tf.train.get_global_step()
        x, y = points()
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            fitted = network(tf.constant(x))
        loss = tf.reduce_mean(tf.square(fitted - y))
        initialise = tf.global_variables_initializer()
        # Runs after `initialise`: in `replicated`, the copies of the other devices are local variables, which are
        # initialised with the first device's values.
        start = tf.local_variables_initializer()
        if before_session:
            before_session()
        with tf.Session(devices.target, config=session_config(devices)) as session:
            session.run(initialise)
            session.run(start)
            # Asynchronous gradients are applied separately, without a mean.
            shown = gradients if update.synchronous else []
            take_steps(session, steps, [[train_op, shown] for train_op in step.train_ops], [global_step, loss])
            return session.run(fitted)


def take_steps(session, steps, fetches, state):
    """Runs all updates and prints the reports.

    Args:
      session: a session with initialised variables.
      steps: total number of updates.
      fetches: for each train operation [the operation, the towers' gradients to print].
      state: [the number of updates, the loss].
    """
    def update(k, step):
        return functools.partial(session.run, fetches[k]) if step <= steps else None

    line = describe(*session.run(state))
    # In `async`, each tower has a thread, but no tower takes a step while the loss is computed.
    with Stepper(len(fetches)) as stepper:
        for step, (_, gradients) in enumerate(stepper.results(0, update, is_described), 1):
            if line:
                print(line + describe_gradients(gradients))
            line = describe(*session.run(state)) if is_described(step) and step < steps else ''
    print(describe(*session.run(state)))


def is_described(step):
    """Returns whether to print the loss after `step` updates."""
    return step % EVERY == 0


def describe(updates, loss):
    """Formats the loss after a number of updates."""
    return f'after {updates:4} updates, loss = {loss:.6f}'


def describe_gradients(gradients):
    """Formats the towers' gradients of b2, K x float32 [1], and their mean; '' without gradients."""
    if not gradients:
        return ''
    values = ' '.join(f'{gradient[0]:.4f}' for gradient in gradients)
    return f', gradient of b2: {values}, mean {np.mean(gradients):.4f}'


def plot(path, fitted):
    """Plots the points and the fit to a PNG file."""
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
    form = parser.add_mutually_exclusive_group()
    form.add_argument('--alone', action='store_true', help='fit on one device, without towers')
    form.add_argument('--towers', type=flags.at_least(1), default=1, metavar='K',
                      help='number of towers in each process (default: 1)')
    parser.add_argument('--steps', type=flags.at_least(1), default=2000, metavar='STEPS',
                        help='number of updates (default: 2000)')
    parser.add_argument('--variable_update', choices=MODES, default=MODES[0],
                        help='update mode (default: %(default)s)')
    parser.add_argument('--plot', metavar='FILE', help='PNG file for a plot of the fit; needs matplotlib')
    flags.add_cluster(parser)
    arguments = parser.parse_args()
    if arguments.plot:
        directories.check_plot(arguments.plot)

    def show(fitted):
        if arguments.plot:
            plot(arguments.plot, fitted)
            print(f'written    {arguments.plot}')

    def run(devices, before_session=None):
        show(fit(devices, arguments.steps, arguments.variable_update, before_session))

    if arguments.alone:
        with tf.Graph().as_default():
            show(alone(arguments.steps))
        return
    local_devices = choose_devices(arguments.towers, 'cpu')
    cluster = membership.resolve(arguments)
    if cluster is None:
        gpus.claim(local_devices.num_gpus)
        run(local_devices)
    else:
        member.take_part(cluster, local_devices, run, arguments.cluster_timeout_secs,
                         not UPDATE_MODES.load(arguments.variable_update).has_copies,
                         flags=dict(towers=arguments.towers), port_filter=arguments.port_filter)


if __name__ == '__main__':
    sys.exit(program.run(main))
