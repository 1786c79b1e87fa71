#!/usr/bin/env python3
"""Trains a model of your own on several towers, with the same parts as the CIFAR-10 trainer.

    python examples/towers_by_hand.py --towers=4

A small network learns which points of a square lie in a circle. Each tower sees its share of the points.
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cifar10 import console  # noqa: E402
from cifar10.cli import program  # noqa: E402

console.start_tensorflow()

import tensorflow.compat.v1 as tf  # noqa: E402

from cifar10.cli import flags  # noqa: E402
from cifar10.errors import UsageError  # noqa: E402
from cifar10.parallel import gpus  # noqa: E402
from cifar10.parallel.devices import choose as choose_devices  # noqa: E402
from cifar10.parallel.session_config import session_config  # noqa: E402
from cifar10.parallel.towers import average_gradients, build_towers  # noqa: E402
from cifar10.settings.training import TOWER_DEVICES  # noqa: E402

POINTS = 1200


def model(x):
    """Builds the network: float32 [n, 2] -> logits float32 [n, 1]. The towers share its variables on the CPU."""
    def weights(name, shape, stddev):
        with tf.device('/cpu:0'):
            return tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(stddev=stddev))

    hidden = tf.nn.relu(x @ weights('w1', [2, 32], 1.0) + weights('b1', [32], 1.0))
    return hidden @ weights('w2', [32, 1], 0.1) + weights('b2', [1], 0.1)


def train(devices, steps):
    """Trains, and prints the mean loss of the towers every 100 steps.

    Args:
      devices: a `parallel.devices.Devices`.
      steps: number of updates.
    """
    x = np.random.default_rng(0).uniform(-1, 1, [POINTS, 2]).astype(np.float32)
    y = (np.square(x).sum(1, keepdims=True) < 0.6).astype(np.float32)
    tf.set_random_seed(0)
    with tf.device('/cpu:0'):
        global_step = tf.train.create_global_step()
        optimizer = tf.train.GradientDescentOptimizer(0.5)

    def tower(k, scope):
        # The shares are equal, so the mean over the towers is the mean over all points.
        share = slice(k, None, devices.num_towers)
        loss = tf.losses.sigmoid_cross_entropy(y[share], model(tf.constant(x[share])), scope=scope)
        return loss, optimizer.compute_gradients(loss)

    losses, tower_grads = zip(*build_towers(devices.tower_devices, tower))
    with tf.device('/cpu:0'):
        # No variable may change before every tower has read it. A tower that has its loss has read all of them.
        with tf.control_dependencies(losses):
            train_op = optimizer.apply_gradients(average_gradients(tower_grads), global_step)
        loss = tf.add_n(losses) / len(losses)
    with tf.Session(config=session_config(devices)) as session:
        session.run(tf.global_variables_initializer())
        for step in range(1, steps + 1):
            loss_value, _ = session.run([loss, train_op])
            if step % 100 == 0 or step == steps:
                print(f'step {step:4}, loss = {loss_value:.4f}')


def main():
    """Reads the flags and trains."""
    parser = flags.Parser(__doc__.splitlines()[0])
    parser.add_argument('--towers', type=flags.at_least(1), default=1, metavar='K',
                        help='number of towers, one on each device (default: %(default)s)')
    parser.add_argument('--tower_device', choices=TOWER_DEVICES, default='auto',
                        help='auto: GPUs, or the CPU where there are none (default: %(default)s)')
    parser.add_argument('--steps', type=flags.at_least(1), default=500, metavar='N',
                        help='number of updates (default: %(default)s)')
    arguments = parser.parse_args()
    if POINTS % arguments.towers:
        raise UsageError(f'--towers={arguments.towers} cannot share {POINTS} points evenly; use a divisor of '
                         f'{POINTS}')
    devices = choose_devices(arguments.towers, arguments.tower_device, count_flag='--towers')
    gpus.claim(devices.num_gpus)
    print(f'towers     {devices.num_towers} {devices}')
    train(devices, arguments.steps)


if __name__ == '__main__':
    sys.exit(program.run(main))
