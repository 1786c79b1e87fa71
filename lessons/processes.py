#!/usr/bin/env python3
"""Lesson 5, processes: a master splits a batch over P processes, collects and averages their gradients, and updates.

    python lessons/processes.py
    python lessons/processes.py --processes=5

A network of 1-5-1 units fits the parabola y = x^2 at 50 points. The network is a TensorFlow graph in every process; the
messages are NumPy arrays through pipes. In each step the master sends every process the parameters and a share of the
points, and receives the gradient of that share, a partial gradient. Their mean, weighted by the numbers of points, is
the gradient of the whole batch, so the master takes the same steps for every P.

It prints the number of each process in the system. Then, after 0 updates and after every 50th, it prints each process's
partial gradient, their mean, and the gradient that the master computes from all 50 points by itself; and at the end the
losses with 1 to P processes, which are equal. The points are split as in lesson 4.

In the package: examples/parabola.py is the same fit in a cluster (`python -m cifar10 local_cluster`). There TensorFlow
carries the tensors between the processes, and `average_gradients` in cifar10/parallel/towers.py takes the mean.
Exercise: lessons/exercises/processes.py.
"""
import contextlib
import multiprocessing
import os
import signal
import sys
import zlib

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cifar10.base import startup  # noqa: E402
from cifar10.programs import program  # noqa: E402

if status := program.run(startup.start_tensorflow):
    sys.exit(status)

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

from cifar10.base.errors import RunError, UsageError  # noqa: E402
from cifar10.programs import flags  # noqa: E402
from lessons import common  # noqa: E402
from lessons.split_batch import shares_of  # noqa: E402

POINTS = 50
RATE = 0.01
EVERY = 50  # updates between two reports
SHAPES = {'w1': [1, 5], 'b1': [5], 'w2': [5, 1], 'b2': [1]}
TYPE = tf.float64  # so that sums in another order agree in all the digits that are printed


def points():
    """Returns (x, y), float64 [50, 1] each."""
    x = np.linspace(-2, 2, POINTS)[:, None]
    return x, x ** 2


def create_variables():
    """Creates w1, b1, w2 and b2, float64, whose initial values are drawn from seeds; returns them in this order."""
    return [tf.get_variable(name, dtype=TYPE, initializer=tf.cast(
        tf.random.stateless_normal(shape, [0, zlib.crc32(name.encode())]), TYPE)) for name, shape in SHAPES.items()]


def network(parameters, x):
    """Builds the network, with the parameters w1, b1, w2 and b2: float64 [points, 1] -> float64 [points, 1]."""
    w1, b1, w2, b2 = parameters
    return tf.tanh(x @ w1 + b1) @ w2 + b2


def loss_and_gradients(parameters, x, y):
    """Builds the mean squared error over some points, and its gradient for w1, b1, w2 and b2.

    Args:
      parameters: the four tensors or variables, in the order of SHAPES.
      x, y: float64 [points, 1].
    """
    loss = tf.reduce_mean(tf.square(network(parameters, x) - y))
    return loss, tf.gradients(loss, parameters)


def serve(connection, devices, p):
    """Runs process p: receives (parameters, x, y) and sends the gradients, until the master closes the pipe."""
    with tf.device(devices[p]):
        parameters = [tf.placeholder(TYPE, shape) for shape in SHAPES.values()]
        x, y = tf.placeholder(TYPE, [None, 1]), tf.placeholder(TYPE, [None, 1])
        _, gradients = loss_and_gradients(parameters, x, y)
    with common.session(devices) as session, contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        while True:
            values, own_x, own_y = connection.recv()
            fed = dict(zip([*parameters, x, y], [*values, own_x, own_y]))
            connection.send(session.run(gradients, fed))


@contextlib.contextmanager
def processes(count, devices):
    """Context with `count` serving processes; its value is the master's end of a pipe to each. Prints their pids."""
    # 'spawn' starts a new interpreter. A forked process would inherit TensorFlow's locks, but not its threads.
    spawning = multiprocessing.get_context('spawn')
    connections = []
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited, so Ctrl-C ends only the master
    for p in range(count):
        ours, theirs = spawning.Pipe()
        process = spawning.Process(target=serve, args=(theirs, devices, p), daemon=True)
        process.start()
        print(f'process {p} has pid {process.pid}', flush=True)
        theirs.close()
        connections.append(ours)
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


def collect(connections, values, x, y):
    """Splits the points over the processes; returns (their partial gradients, the weight of each)."""
    count = len(connections)
    shares = [(x[share], y[share]) for share in shares_of(len(x), count)]
    partial = []
    try:
        for p, (own_x, own_y) in enumerate(shares):
            connections[p].send((values, own_x, own_y))
        for p in range(count):  # while the master waits for the first, all processes compute
            partial.append(connections[p].recv())
    except (EOFError, OSError) as error:
        raise RunError(f'process {p} ended before it answered; start the lesson again') from error
    return partial, [len(own_x) / len(x) for own_x, _ in shares]


def average(partial, weights):
    """Returns the weighted mean of the partial gradients: P processes x 4 arrays -> 4 arrays; the weights add to 1."""
    return [sum(weight * gradient for weight, gradient in zip(weights, gradients))
            for gradients in zip(*partial)]


def fit(connections, steps, report):
    """Fits the parabola with the processes; runs in the master.

    Args:
      connections: pipes to the P processes.
      steps: the number of updates.
      report: function (number of updates, loss, partial gradients, weights, mean, gradient of all points), called after
        0 updates and after every 50th.

    Returns:
      {number of updates: (loss, the fitted values at the points)}.
    """
    x, y = points()
    found = {}
    with tf.Graph().as_default():
        variables = create_variables()
        whole = *loss_and_gradients(variables, tf.constant(x), tf.constant(y)), network(variables, tf.constant(x))
        received = [tf.placeholder(TYPE, shape) for shape in SHAPES.values()]
        update = [variable.assign_sub(RATE * gradient) for variable, gradient in zip(variables, received)]
        with common.session(['/cpu:0']) as session:
            session.run(tf.global_variables_initializer())
            for updates in range(steps + 1):
                partial, weights = collect(connections, session.run(variables), x, y)
                mean = average(partial, weights)
                if updates % EVERY == 0:
                    loss, gradients, fitted = session.run(whole)
                    found[updates] = loss, fitted
                    report(updates, loss, partial, weights, mean, gradients)
                if updates < steps:
                    session.run(update, dict(zip(received, mean)))
    return found


def show(updates, loss, partial, weights, mean, whole):
    """Prints the gradients after a number of updates, one row for each process."""
    print(f'after {updates} updates, loss {loss:.6f}')
    rows = [(f'process {p}, {round(weight * POINTS)}/{POINTS}', gradients)
            for p, (weight, gradients) in enumerate(zip(weights, partial))]
    rows += [('mean', mean), (f'all {POINTS} points', whole)]
    for first, second in (('w1', 'b1'), ('w2', 'b2')):
        print(f'{"":18}{first:>6}{second:>32}')
        for label, gradients in rows:
            named = dict(zip(SHAPES, gradients))
            print(f'{label:18}{common.numbers(named[first], width=6)}  {common.numbers(named[second], width=6)}')
    difference = max(np.abs(a - b).max() for a, b in zip(mean, whole))
    print(f'The largest difference between the last two rows is {difference:.10f}.\n')


def draw(path, found, count):
    """Draws the points, in a colour for each process, and the fit of the network."""
    from matplotlib import pyplot
    x, y = points()
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout='constrained')
    for p, share in enumerate(shares_of(POINTS, count)):
        axes.plot(x[share], y[share], 'o', markersize=4, label=f'points of process {p}' if count <= 5 else None)
    for (updates, (_, fitted)), style in zip([*found.items()][:1] + [*found.items()][-1:], (':', '-')):
        axes.plot(x, fitted, style, color='black', label=f'fitted after {updates} updates')
    axes.legend(frameon=False, fontsize='small')
    common.save(figure, path)


def main():
    """Reads the flags, starts the processes and fits."""
    parser = common.parser(__doc__, plot='the points and the fit')
    parser.add_argument('--processes', type=flags.at_least(1), default=3, metavar='P',
                        help='number of processes besides the master (default: %(default)s)')
    parser.add_argument('--steps', type=flags.at_least(1), default=100, metavar='STEPS',
                        help='number of updates (default: %(default)s)')
    arguments = common.parse(parser)
    count = arguments.processes
    if count > POINTS:
        raise UsageError(f'--processes={count}, but {POINTS} points can be split over at most {POINTS}; use fewer')
    with processes(count, common.choose_devices(arguments.device, count)) as connections:
        print(f'Every process computes the gradient of its share of the {POINTS} points. The mean is weighted by the '
              'shares.\nThe last row is the gradient of all points, which the master computes by itself to compare.\n')
        found = {count: fit(connections, arguments.steps, show)}
        for fewer in range(1, count):
            found[fewer] = fit(connections[:fewer], arguments.steps, lambda *_: None)
    print('The losses with each number P of processes that compute, besides the master:')
    print('after updates' + ''.join(f'{f"P = {p}":>12}' for p in sorted(found)))
    for updates in found[count]:
        print(f'{updates:13}' + ''.join(f'{found[p][updates][0]:12.6f}' for p in sorted(found)))
    if arguments.plot:
        draw(arguments.plot, found[count], count)


if __name__ == '__main__':
    sys.exit(program.run(main))
