#!/usr/bin/env python3
"""Lesson 10 on the classic network: its gradient noise scale, from the gradients of eight towers.

    python lessons/noise_scale.py --data_dir=/tmp/cifar10_data
    python lessons/noise_scale.py --dataset=shapes --data_dir=/tmp/shapes_data --after=20,40

The package trains the classic preset. The squared norm of the gradient changes tenfold within a few updates, so the
lesson takes means over 32 points of the training, four updates apart. At each point it takes four steps at a rate of 0,
which change no weight. The towers' gradients give the noise scale as in lessons/larger_batch.py. They also predict the
squared norm of the gradient of a batch four times as large as a step's. The lesson compares it with the norm of the
four steps together.
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cifar10.base import startup  # noqa: E402
from cifar10.programs import program  # noqa: E402

if status := program.run(startup.start_tensorflow):
    sys.exit(status)

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

from cifar10.data import datasets  # noqa: E402
from cifar10.parallel import devices  # noqa: E402
from cifar10.programs import flags  # noqa: E402
from cifar10.settings.training import train_settings  # noqa: E402
from cifar10.training.decisions import decided  # noqa: E402
from cifar10.training.plan import plan_of  # noqa: E402
from cifar10.training.run import Run  # noqa: E402
from lessons.larger_batch import BATCH, TOWERS, noise_scale  # noqa: E402

POINTS, APART = 32, 4  # the printed values are means over these points of the training, so many updates apart
STEPS = 4  # at each point, with the same weights


def build(dataset, data_dir):
    """Builds the training; returns (its Run, tensors: squared norms of the towers' gradients, their mean gradient)."""
    device, data = devices.choose(1, 'cpu'), datasets.prepare(dataset, data_dir)
    settings = train_settings(dataset=dataset, data_dir=data_dir, tower_device='cpu', num_towers=TOWERS,
                              batch_size=BATCH, precision='fp32', max_steps=10 ** 6, summary_steps=0)
    plan = plan_of(decided(settings, device, before={}), data, device)
    seen = []

    class Watched(type(plan.mode)):
        """The update mode, which also records the gradient of each tower, over all variables."""

        def reduce(self, towers):
            seen.extend(tf.concat([tf.reshape(gradient, [-1]) for gradient, _ in tower.gradients], 0)
                        for tower in towers)
            return super().reduce(towers)

    run = Run(plan._replace(mode=Watched(plan.mode.devices)))
    with run.adding():
        squares = tf.stack([tf.reduce_sum(tf.square(gradient)) for gradient in seen])
        return run, dict(squares=squares, mean=tf.add_n(seen) / TOWERS)


def show(run, looks, moments):
    """Trains, and prints the noise scale from each number of updates in `moments` on; `looks` is from `build`."""
    large = STEPS * TOWERS * BATCH
    print(f'{TOWERS} towers of {BATCH} examples; {POINTS} points, {APART} updates apart; {STEPS} steps at each.\n'
          f'    from{"":30}|gradient|^2 of {large} examples\n  update   loss         noise scale'
          '       predicted  measured', flush=True)
    with run.opened():
        made = 0
        for moment in moments:
            while made < moment:
                run.take()
                made += 1
            found = np.array([at_point(run, looks) for _ in range(POINTS)], np.float64)
            towers, means, of_all, losses = found.T
            norm, noise, scale, error = noise_scale(towers, means, BATCH)
            print(f'{made:8}{losses.mean():7.2f}{scale:13.0f} +- {error:<10.0f}{norm + noise / large:10.4f}'
                  f'{of_all.mean():10.4f}', flush=True)
            made += POINTS * APART


def at_point(run, looks):
    """Takes STEPS steps with the same weights, and then makes APART updates.

    Returns the mean squared norms of the towers' gradients and of their means, the squared norm of the mean of all
    gradients, and the mean loss.
    """
    found = [run.take(looks, {run.graph.learning_rate: 0.0}) for _ in range(STEPS)]
    means = np.array([each['mean'] for each in found])
    for _ in range(APART):
        run.take()
    return (np.mean([each['squares'] for each in found]), np.square(means).sum(1).mean(),
            np.square(means.mean(0)).sum(), np.mean([each['figures']['loss'] for each in found]))


def updates(text):
    """An argparse type: increasing numbers of updates, such as '100,500'."""
    numbers = [int(number) for number in text.split(',') if number.isdecimal()]
    if not numbers or text != ','.join(map(str, sorted(set(numbers)))):
        raise argparse.ArgumentTypeError(f'{text!r} is not a list of increasing numbers, such as 100,500')
    return numbers


def main():
    """Reads the flags, and trains."""
    parser = flags.Parser(__doc__.splitlines()[0])
    parser.add_argument('--after', type=updates, default='100,500', metavar='U,U',
                        help='measure from these numbers of updates on (default: %(default)s)')
    parser.add_argument('--dataset', choices=('cifar10', 'shapes'), default='cifar10',
                        help='images (default: %(default)s)')
    parser.add_argument('--data_dir', default='/tmp/cifar10_data', metavar='DIR',
                        help='folder of the images, or for their download (default: %(default)s)')
    arguments = parser.parse_args()
    show(*build(arguments.dataset, arguments.data_dir), arguments.after)


if __name__ == '__main__':
    sys.exit(program.run(main))
