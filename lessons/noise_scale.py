#!/usr/bin/env python3
"""Lesson 10 on the classic network: its gradient noise scale, from the gradients of eight towers.

    python lessons/noise_scale.py --data_dir=/tmp/cifar10_data
    python lessons/noise_scale.py --dataset=shapes --data_dir=/tmp/shapes_data --after=20,40

The package trains the classic preset. After some updates it takes steps at a rate of 0, which change no weight.
The towers' gradients give the noise scale as in lessons/larger_batch.py. They also predict the squared norm of the
gradient of a batch four times as large as a step's. The lesson compares it with the norm of four steps together.
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

STEPS = 64  # with the same weights; the printed values are means over them


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
    """Trains, and prints the noise scale after each number of updates in `moments`; `looks` is from `build`."""
    large = 4 * TOWERS * BATCH
    print(f'{TOWERS} towers of {BATCH} examples; {STEPS} steps at the same weights.\n'
          f'   after{"":30}|gradient|^2 of {large} examples\n updates   loss         noise scale'
          '       predicted  measured', flush=True)
    rate = run.graph.learning_rate
    with run.opened():
        made = 0
        for moment in moments:
            for _ in range(made, moment):
                run.take()
            made = moment
            found = [run.take(looks, {rate: 0.0}) for _ in range(STEPS)]
            means = np.array([each['mean'] for each in found])
            norm, noise, scale, error = noise_scale(np.array([each['squares'].mean() for each in found], np.float64),
                                                    np.square(means).sum(1, dtype=np.float64), BATCH)
            of_four = np.square(means.reshape(STEPS // 4, 4, -1).mean(1)).sum(1).mean()
            loss = np.mean([each['figures']['loss'] for each in found])
            print(f'{made:8}{loss:7.2f}{scale:13.0f} +- {error:<10.0f}{norm + noise / large:10.4f}{of_four:10.4f}',
                  flush=True)


def updates(text):
    """An argparse type: increasing numbers of updates, such as '100,500'."""
    numbers = [int(number) for number in text.split(',') if number.isdecimal()]
    if not numbers or text != ','.join(map(str, sorted(set(numbers)))):
        raise argparse.ArgumentTypeError(f'{text!r} is not a list of increasing numbers, such as 100,500')
    return numbers


def main():
    """Reads the flags, and trains."""
    parser = flags.Parser(__doc__.splitlines()[0])
    parser.add_argument('--after', type=updates, default='100,300', metavar='U,U',
                        help='measure after these numbers of updates (default: %(default)s)')
    parser.add_argument('--dataset', choices=('cifar10', 'shapes'), default='cifar10',
                        help='images (default: %(default)s)')
    parser.add_argument('--data_dir', default='/tmp/cifar10_data', metavar='DIR',
                        help='folder of the images, or for their download (default: %(default)s)')
    arguments = parser.parse_args()
    show(*build(arguments.dataset, arguments.data_dir), arguments.after)


if __name__ == '__main__':
    sys.exit(program.run(main))
