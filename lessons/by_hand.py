#!/usr/bin/env python3
"""Lesson 2, by hand: a model of your own on several towers, with two functions of the package.

    python lessons/by_hand.py --towers=4
    python lessons/by_hand.py --order

A small network learns which of 1200 points of a square lie in a circle. Each tower sees its share of the points. With
`--order` it shows the use of `tf.control_dependencies`: if no gradient needs a value, `session.run` may read it before
or after an update that it fetches together with the value.

In the package: `build_towers` and `average_gradients` in cifar10/parallel/towers.py.
Exercises: lessons/exercises/by_hand.py.
"""
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cifar10.base import startup  # noqa: E402
from cifar10.programs import program  # noqa: E402

if status := program.run(startup.start_tensorflow):
    sys.exit(status)

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

from cifar10.base.errors import UsageError  # noqa: E402
from cifar10.parallel.towers import average_gradients, build_towers  # noqa: E402
from cifar10.programs import flags  # noqa: E402
from lessons import common  # noqa: E402

POINTS = 1200
RATE = 0.5
EVERY = 100  # updates between two reports


def points():
    """Returns x, float32 [1200, 2], points of a square, and y, float32 [1200, 1], 1 for points in a circle."""
    x = np.random.default_rng(0).uniform(-1, 1, [POINTS, 2]).astype(np.float32)
    return x, (np.square(x).sum(1, keepdims=True) < 0.6).astype(np.float32)


def model(x):
    """Builds the network: float32 [points, 2] -> logits [points, 1]. The towers share its variables on the CPU."""
    def weights(name, shape, stddev):
        with tf.device('/cpu:0'):
            return tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(stddev=stddev))

    hidden = tf.nn.relu(x @ weights('w1', [2, 32], 1.0) + weights('b1', [32], 1.0))
    return hidden @ weights('w2', [32, 1], 0.1) + weights('b2', [1], 0.1)


def train(devices, steps):
    """Trains with a tower on each device, and prints the mean loss of the towers after every 100 updates.

    Returns:
      {number of updates: loss}, and the logits of the points, float32 [1200, 1], after the last update.
    """
    print(f"towers     {len(devices)} on {' '.join(devices)}")
    x, y = points()
    tf.set_random_seed(0)
    with tf.device('/cpu:0'):
        global_step = tf.train.create_global_step()
        optimizer = tf.train.GradientDescentOptimizer(RATE)

    def tower(k, scope):
        # The shares are equal, so the mean over the towers is the mean over all points.
        share = slice(k, None, len(devices))
        loss = tf.losses.sigmoid_cross_entropy(y[share], model(tf.constant(x[share])), scope=scope)
        return loss, optimizer.compute_gradients(loss)

    losses, tower_grads = zip(*build_towers(devices, tower))
    with tf.device('/cpu:0'):
        train_op = optimizer.apply_gradients(average_gradients(tower_grads), global_step)
        loss = tf.add_n(losses) / len(losses)
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        logits = model(tf.constant(x))
    found = {}
    with common.session(devices) as session:
        session.run(tf.global_variables_initializer())
        for updates in range(1, steps + 1):
            session.run(train_op)
            if updates % EVERY == 0 or updates == steps:
                found[updates] = session.run(loss)
                print(f'after {updates:4} updates, loss = {found[updates]:.4f}')
        return found, session.run(logits)


def show_order():
    """Prints a late tower's loss 3 w, fetched together with an update of w: first without an order, then with one."""
    def wait():
        time.sleep(0.2)
        return np.float32(0)

    print(f'The loss is 3 w, so its gradient is 3 for any w. At first w is 1; the update makes it 1 - {RATE} * 3.')
    for ordered in (False, True):
        with tf.Graph().as_default():
            w = tf.get_variable('w', initializer=1.0)
            with tf.control_dependencies([tf.py_func(wait, [], tf.float32)]):  # a tower that is late
                late = w.read_value()
            loss = 3.0 * late
            gradient, = tf.gradients(loss, late)
            with tf.control_dependencies([loss] if ordered else []):
                update = w.assign_sub(RATE * gradient)
            with common.session(['/cpu:0'], threads=2) as session:
                session.run(w.initializer)
                value, _ = session.run([loss, update])
        print(f"  {'with' if ordered else 'without':7} tf.control_dependencies([loss]) the loss is {value:4.1f}")


def draw(path, found, logits):
    """Draws the network's classification of the points, and the losses against updates."""
    from matplotlib import pyplot
    x, _ = points()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3.4), layout='constrained')
    for label, chosen in (('outside', logits[:, 0] <= 0), ('in the circle', logits[:, 0] > 0)):
        left.plot(*x[chosen].T, '.', markersize=3, label=label)
    left.add_patch(pyplot.Circle((0, 0), 0.6 ** 0.5, fill=False))
    left.set(aspect='equal', title='what the network says')
    left.legend(loc='upper left', fontsize='small')
    right.plot(list(found), list(found.values()), 'o-', color='black')
    right.set(xlabel='updates', ylabel='loss', ylim=(0, None))
    common.save(figure, path)


def main():
    """Reads the flags and trains."""
    parser = common.parser(__doc__, plot='the points and the losses')
    parser.add_argument('--towers', type=flags.at_least(1), default=1, metavar='K',
                        help='number of towers, one on each device (default: %(default)s)')
    parser.add_argument('--steps', type=flags.at_least(1), default=500, metavar='STEPS',
                        help='number of updates (default: %(default)s)')
    parser.add_argument('--order', action='store_true',
                        help='show the use of tf.control_dependencies, and do not train')
    arguments = common.parse(parser)
    if arguments.order:
        return show_order()
    if POINTS % arguments.towers:
        raise UsageError(f'--towers={arguments.towers} cannot share {POINTS} points evenly; use a divisor of '
                         f'{POINTS}')
    found, logits = train(common.choose_devices(arguments.device, arguments.towers), arguments.steps)
    if arguments.plot:
        draw(arguments.plot, found, logits)


if __name__ == '__main__':
    sys.exit(program.run(main))
