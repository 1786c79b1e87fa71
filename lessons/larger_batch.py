#!/usr/bin/env python3
"""Lesson 10, a larger batch: its effect on the gradient, the learning rate and the number of updates.

    python lessons/larger_batch.py --plot=/tmp/larger_batch.png

The model is a noisy quadratic (Zhang et al. 2019), whose losses have formulas. An example is a point c, drawn anew each
time, and its loss is half the sum of curvature * (w - c)^2 over the ten weights. Eight towers compute gradients of
batches of points. These gradients alone give the gradient noise scale (McCandlish et al. 2018). Then the lesson trains
with larger batches and three rules for the rate, with a warm-up, and with the best rate for each batch.

In the package: `average_gradients` in cifar10/parallel/towers.py takes the mean of the towers' gradients.
lessons/noise_scale.py measures the noise scale of the classic network. Exercises: lessons/exercises/larger_batch.py.
"""
import bisect
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cifar10.base import startup  # noqa: E402
from cifar10.programs import program  # noqa: E402

if status := program.run(startup.start_tensorflow):
    sys.exit(status)

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

from lessons import common  # noqa: E402

CURVATURES = np.logspace(0, -2, 10)  # of the loss in the ten weights: 1, 0.6, ... 0.01
V = CURVATURES.sum()  # variance of an example's gradient curvature * (w - c); the variance of c is 1 / curvature
START, TARGET = 3.0, 0.05  # each weight at the start, and the loss to reach; the loss starts at 11.2
TOWERS, BATCH = 8, 16
DRAWS = 400  # of a batch for every tower; the printed values are means over them
RUNS = 2000  # trainings in parallel; their mean loss is printed
EXAMPLES = 1600  # in the comparison of rates


def build_towers(devices):
    """Builds the towers; returns placeholders of the weights [10] and a draw's number, and gradients [towers, 10]."""
    weights, draw = tf.placeholder(tf.float64, [len(CURVATURES)]), tf.placeholder(tf.int64, [])
    gradients = []
    for k, device in enumerate(devices):
        with tf.device(device), tf.name_scope(f'tower_{k}'):
            normal = tf.random.stateless_normal([BATCH, len(CURVATURES)], [draw, k], dtype=tf.float64)
            points = normal / np.sqrt(CURVATURES)
            loss = tf.reduce_mean(tf.reduce_sum(CURVATURES * tf.square(weights - points), 1)) / 2
            gradients.append(tf.gradients(loss, weights)[0])
    return weights, draw, tf.stack(gradients)


def loss_of(weights):
    """Returns the mean loss over all examples at some weights [..., 10], without its constant part."""
    return (CURVATURES * np.square(weights)).sum(-1) / 2


def noise_scale(towers, means, batch):
    """Returns (squared norm of the true gradient, V, noise scale, its standard error) from towers' gradients.

    For each draw, `towers` has the mean of the squared norms of the towers' gradients, and `means` the squared norm of
    the mean of these gradients. A tower's batch has `batch` examples.
    """
    # The variance between towers is the variance of a batch. Their mean still has a K-th of it.
    spread = (towers - means) * TOWERS / (TOWERS - 1)
    signal = means - spread / TOWERS
    # The jackknife: how far the ratio moves when a draw is left out.
    left_out = batch * (spread.sum() - spread) / (signal.sum() - signal)
    error = np.sqrt((len(spread) - 1) * left_out.var())
    return signal.mean(), batch * spread.mean(), batch * spread.mean() / signal.mean(), error


def show_noise(devices):
    """Prints how the noise falls with the batch, and the noise scale after several updates at the rate 1."""
    weights, draw, gradients = build_towers(devices)
    w = np.full(len(CURVATURES), START)
    with common.session(devices) as session:
        for updates in range(61):
            if updates in (0, 10, 30, 60):
                drawn = np.array([session.run(gradients, {weights: w, draw: i})
                                  for i in range(DRAWS * updates, DRAWS * (updates + 1))])
                if not updates:
                    show_batches(drawn - CURVATURES * w)
                show_scale(updates, w, drawn)
            w = w - session.run(gradients, {weights: w, draw: -1 - updates}).mean(0)


def show_batches(noise):
    """Prints the squared norm of the noise of K towers' mean gradient; noise [draws, towers, 10]."""
    print(f'1. The squared distance from the true gradient to the mean of K towers of {BATCH} examples, in {DRAWS} '
          'draws.\n  K    B  predicted  measured')
    for K in (1, 2, 4, 8):
        distance = np.square(noise[:, :K].mean(1)).sum(-1).mean()
        print(f'{K:3}{K * BATCH:5}{V / (K * BATCH):11.4f}{distance:10.4f}')
    print('\n2. The noise scale V / |G|^2, measured with the gradients of the towers alone.\n'
          f'{"after":>8}{"":11}{"|G|^2":>22}{"V":>22}{"noise scale":>22}\n'
          ' updates       loss' + '   predicted  measured' * 3)


def show_scale(updates, w, drawn):
    """Prints the noise scale at the weights w, by formula and from gradients [draws, towers, 10]."""
    norm, noise, scale, error = noise_scale(
        np.square(drawn).sum(-1).mean(1), np.square(drawn.mean(1)).sum(-1), BATCH)
    exact = np.square(CURVATURES * w).sum()
    print(f'{updates:8}{loss_of(w):11.4f}{exact:12.4f}{norm:10.4f}{V:12.3f}{noise:10.3f}'
          f'{V / exact:12.2f}{scale:10.2f} +- {error:.2f}')


def predict(rate, batch, updates):
    """Returns the expected (loss, squared norm of the true gradient) after so many updates from the start."""
    kept, added = np.square(1 - rate * CURVATURES), np.square(rate) * CURVATURES / batch
    floor = added / (1 - kept)  # of w^2: there, an update adds as much as it takes away
    squares = floor + (START ** 2 - floor) * kept ** updates
    return (CURVATURES * squares).sum() / 2, (np.square(CURVATURES) * squares).sum()


def train(rate, batch, updates):
    """Returns the loss after each of so many updates, the mean of RUNS runs."""
    random = np.random.default_rng([batch, updates])
    w, losses = np.full([RUNS, len(CURVATURES)], START), []
    for _ in range(updates):
        # The means of batches of points, one for each run.
        mean_points = random.normal(size=w.shape) / np.sqrt(CURVATURES * batch)
        w -= rate * CURVATURES * (w - mean_points)
        losses.append(loss_of(w).mean())
    return losses


def show_rates():
    """Prints the loss after equal numbers of examples, for larger batches and three rules for the rate."""
    print(f'\n3. The loss after {EXAMPLES} examples, and after endlessly many (measured: means of {RUNS} runs).\n'
          '   B  rule         rate  updates  predicted  measured    endless')
    for batch, rule, rate in ((1, '', 0.1), (4, 'the same', 0.1), (4, 'linear', 0.4), (4, 'square root', 0.2),
                              (16, 'linear', 1.6), (16, 'square root', 0.4), (32, 'linear', 3.2)):
        updates = EXAMPLES // batch
        endless = f'{predict(rate, batch, np.inf)[0]:.4f}' if rate * max(CURVATURES) < 2 else 'none'
        print(f'{batch:4}  {rule:11}{rate:6.1f}{updates:9}{predict(rate, batch, updates)[0]:11.4g}'
              f'{train(rate, batch, updates)[-1]:10.4g}{endless:>11}')


def show_warm_up():
    """Prints the effect of a warm-up on the loss w^4 / 4; its curvature 3 w^2 falls during the training."""
    print('\n4. The loss w^4 / 4 from w = 3, with a rate that rises to 0.4. An update multiplies w by 1 - rate * w^2.\n'
          'updates of warm-up   the first factor   |w| after 10 updates')
    for length in (0, 2, 5):
        w, rates = 3.0, [0.4 * min(1, (update + 1) / max(length, 1)) for update in range(10)]
        for rate in rates:
            w = w * (1 - rate * w ** 2) if abs(w) < 1e6 else np.inf
        print(f'{length:18}{1 - rates[0] * 3 ** 2:19.2f}{abs(w):23.3f}')


def updates_to_target(rate, batch):
    """Returns the fewest updates, up to 9999, that bring the expected loss to TARGET or below."""
    return bisect.bisect_left(range(9999), True, key=lambda updates: predict(rate, batch, updates)[0] <= TARGET)


def show_knee():
    """Prints the number of updates to a loss for each batch, each with its best rate; returns the table."""
    table = []
    for batch in (1, 4, 16, 64, 256, 1024, 4096):
        updates, rate = min((updates_to_target(rate, batch), rate) for rate in np.geomspace(0.01, 1.99, 200))
        losses = train(rate, batch, updates * 5 // 4)
        table.append((batch, rate, updates, 1 + next(i for i, loss in enumerate(losses) if loss <= TARGET)))
    _, rate, updates, _ = table[0]
    scale, fewest = V / predict(rate, 1, updates)[1], table[-1][2]
    print(f'\n5. Updates to a loss of {TARGET}, with the best rate for each batch. At that loss the noise scale is '
          f'{scale:.0f}.\n    B   rate  predicted  measured  {fewest} (1 + {scale:.0f} / B)  examples')
    for batch, rate, updates, measured in table:
        print(f'{batch:5}{rate:7.3f}{updates:11}{measured:10}{fewest * (1 + scale / batch):16.0f}{batch * updates:10}')
    return table, scale


def draw(path, table, scale):
    """Draws the updates to the target loss against the batch into a PNG file."""
    from matplotlib import pyplot
    batches, _, predicted, measured = np.array(table).T
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout='constrained')
    axes.loglog(batches, predicted, color='C0', linewidth=4, alpha=0.5, label='predicted, with the best rate')
    axes.loglog(batches, measured, 'k.', label='measured')
    axes.loglog(batches, predicted[0] / batches, '--', color='0.6', label='a K-th of the updates for K times the batch')
    axes.axvline(scale, color='C1', label='noise scale at the loss')
    axes.set(xlabel='examples in a batch', ylabel=f'updates to a loss of {TARGET}', ylim=(10, None))
    axes.set_xticks(batches, [f'{batch:.0f}' for batch in batches])
    axes.legend(frameon=False)
    common.save(figure, path)


def main():
    """Reads the flags and runs the lesson."""
    arguments = common.parse(common.parser(__doc__, plot='the updates to a loss against the batch'))
    show_noise(common.choose_devices(arguments.device, TOWERS))
    show_rates()
    show_warm_up()
    table = show_knee()
    if arguments.plot:
        draw(arguments.plot, *table)


if __name__ == '__main__':
    sys.exit(program.run(main))
