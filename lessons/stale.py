#!/usr/bin/env python3
"""Lesson 6, stale gradients: asynchronous updates, where no tower waits for another.

    python lessons/stale.py
    python lessons/stale.py --slow=10 --plot=/tmp/stale.png

The towers share one copy of the variables. Each tower reads them, computes the gradient of a batch and applies it.
The number of updates that the other towers have made meanwhile is the staleness of the gradient. The network is from
lesson 5, and the last tower is slow. Synchronous towers all wait for it before each update; asynchronous ones do
not.

For the first updates it prints the update at the start of each gradient and the update that applies it, with the
numbers of one variable. Then it prints the loss after so many updates and so many milliseconds, synchronous and
asynchronous, with equal towers and with a slow one, and the parts of the difference due to the rate, the examples and
the staleness. In these tables time is simulated, so they are the same in every run. At the end the same towers run in
threads, in real time.

In the package: cifar10/parallel/asynchronous.py (`--variable_update=async`), whose threads are in
cifar10/parallel/stepper.py; it reports each gradient's staleness. Exercises: lessons/exercises/stale.py.
"""
import concurrent.futures
import heapq
import itertools
import os
import sys
import threading
import time
from typing import NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cifar10.base import startup  # noqa: E402
from cifar10.programs import program  # noqa: E402

if status := program.run(startup.start_tensorflow):
    sys.exit(status)

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

from cifar10.programs import flags  # noqa: E402
from lessons import common  # noqa: E402
from lessons.processes import SHAPES, create_variables, loss_and_gradients, points  # noqa: E402

BATCHES = 5  # of 10 points each; batch i has the points i, i + 5, i + 10 ...
TOWERS = 4
TOWER_MS = 10  # milliseconds that a tower takes for a gradient
SIMULATED_MS = 1000  # of training, for the tables
THREADS_MS = 400  # of training in threads
DIVERGED = 100  # training does not recover from such a loss
AT_UPDATES = (10, 25, 100)
AT_MS = (100, 250, 500, 1000)


class Update(NamedTuple):
    """An update: its time in milliseconds, and its tower, or None if all towers made it together.

    `started` is the number of updates before the tower read the variables, and `applied` the number before its gradient
    was applied. `loss` is the loss of all points after the update. The rest is about the variable b2: the value that
    the tower read, the gradient, and the values before and after the update.
    """
    ms: float
    tower: int | None
    started: int
    applied: int
    loss: float
    b2_read: float
    gradient: float
    b2_before: float
    b2_after: float


class Training:
    """The graph: one copy of the variables, a gradient for each tower's device, and the update with a gradient."""

    def __init__(self, devices):
        x, y = (tf.constant(each) for each in points())
        self._rate = tf.placeholder(tf.float64, [])
        self._batch = tf.placeholder(tf.int64, [])
        self._gradients = [tf.placeholder(tf.float64, shape) for shape in SHAPES.values()]
        with tf.device('/cpu:0'):
            variables = create_variables()
            updates = tf.get_variable('updates', initializer=np.int64(0), trainable=False)
        self._towers = []
        for device in devices:
            with tf.device(device):
                started = updates.read_value()
                # The number is read before the variables, so that it counts every update since.
                with tf.control_dependencies([started]):
                    read = [variable.read_value() for variable in variables]
                batch = [each[self._batch % BATCHES::BATCHES] for each in (x, y)]
                _, gradients = loss_and_gradients(read, *batch)
                self._towers.append((started, read[-1], gradients))
        with tf.device('/cpu:0'):
            applied, before = updates.read_value(), variables[-1].read_value()
            with tf.control_dependencies([applied, before]):
                changes = [variable.assign_sub(self._rate * gradient)
                           for variable, gradient in zip(variables, self._gradients)] + [updates.assign_add(1)]
            with tf.control_dependencies(changes):
                now = [variable.read_value() for variable in variables]
            self._update = applied, loss_and_gradients(now, x, y)[0], before, now[-1]
        self._session = common.session(devices)
        self._initialise = tf.global_variables_initializer()
        self.begin(0.0)
        for k in range(len(devices)):  # the first run of an operation is slow, so it is done before time is measured
            self.apply(0, k, *self.start(k, 0))

    def begin(self, rate):
        """Gives the variables their initial values, and sets the learning rate."""
        self._session.run(self._initialise)
        self._rate_value = rate

    def start(self, k, batch):
        """Tower k reads the variables and computes; returns (number of updates when it read, b2, gradients)."""
        return self._session.run(self._towers[k], {self._batch: batch})

    def apply(self, ms, k, started, b2_read, gradients):
        """Subtracts rate * gradients from the variables as they are now; returns the Update."""
        fed = dict(zip([self._rate, *self._gradients], [self._rate_value, *gradients]))
        applied, loss, before, after = self._session.run(self._update, fed)
        return Update(ms, k, started, applied, loss, b2_read[0], gradients[-1][0], before[0], after[0])


def mean(results):
    """Combines the results of `Training.start` for K towers into one, with the mean of their gradients."""
    started, b2_read, gradients = zip(*results)
    return started[0], b2_read[0], [np.mean(each, axis=0) for each in zip(*gradients)]


def simulate_synchronous(training, durations):
    """Trains for SIMULATED_MS; tower k takes durations[k] ms for a gradient. Returns the Updates."""
    made, towers = [], range(len(durations))
    for step in range(SIMULATED_MS // max(durations)):  # each update waits for the slowest tower
        results = [training.start(k, step * len(towers) + k) for k in towers]
        made.append(training.apply((step + 1) * max(durations), None, *mean(results)))
        if diverged(made):
            break
    return made


def simulate_asynchronous(training, durations):
    """As `simulate_synchronous`, but each tower applies its gradient when it is ready, and starts the next one."""
    made = []
    # The gradients in progress, the earliest first: (milliseconds when it is ready, tower, result of `start`).
    computing = sorted((durations[k], k, training.start(k, k)) for k in range(TOWERS))
    for batch in itertools.count(TOWERS):
        now, k, result = heapq.heappop(computing)
        if now > SIMULATED_MS or diverged(made):
            return made
        made.append(training.apply(now, k, *result))
        heapq.heappush(computing, (now + durations[k], k, training.start(k, batch)))


def run_synchronous(training, durations):
    """Trains for THREADS_MS of real time, with a thread for each tower.

    Returns:
      The Updates, and for each of them the mean milliseconds that a tower waited for the slowest tower, and the
      milliseconds that all waited for the update.
    """
    def compute(k, batch):
        own = time.perf_counter()
        result = training.start(k, batch)
        time.sleep(durations[k] / 1000)  # as long as a large network would take
        return result, ms_since(own)

    made, waited, begin = [], [], time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(TOWERS) as threads:
        while ms_since(begin) < THREADS_MS and not diverged(made):
            batches = range(len(made) * TOWERS, (len(made) + 1) * TOWERS)
            results, computed = zip(*threads.map(compute, range(TOWERS), batches))
            ready = time.perf_counter()
            made.append(training.apply(ms_since(begin), None, *mean(results)))
            waited.append((max(computed) - np.mean(computed), ms_since(ready)))
    return made, waited


def run_asynchronous(training, durations):
    """As `run_synchronous`, but each thread makes its own updates, and waits only while another one updates.

    Returns:
      The Updates.
    """
    made, begin = [], time.perf_counter()
    batches, updating = itertools.count(), threading.Lock()

    def train_tower(k):
        while ms_since(begin) < THREADS_MS and not diverged(made):
            result = training.start(k, next(batches))
            time.sleep(durations[k] / 1000)
            with updating:
                made.append(training.apply(ms_since(begin), k, *result))

    with concurrent.futures.ThreadPoolExecutor(TOWERS) as threads:
        list(threads.map(train_tower, range(TOWERS)))  # `list` raises an exception of a thread here
    return made


def ms_since(begin):
    """Returns the milliseconds since a reading of `time.perf_counter`."""
    return 1000 * (time.perf_counter() - begin)


def diverged(updates):
    """Returns whether the last loss, if there is one, is huge or not a number."""
    return bool(updates) and not updates[-1].loss < DIVERGED


def train(run, training, rate, durations):
    """Calls `run`, one of the four functions above, with the initial values; returns its result."""
    training.begin(rate)
    return run(training, durations)


def show_first(updates, title, rate):
    """Prints the first asynchronous updates, and the updates around the slow tower's first."""
    print(f'The first asynchronous updates of {title} (simulated). A gradient is computed\n'
          'from the variables as the tower read them (b2 read), and applied to them as they are later (b2 before):\n'
          f'b2 after = b2 before - {rate:.3g} * gradient.\n'
          f'{"b2 read":>71}{"gradient":>10}{"b2 before":>11}{"b2 after":>10}')
    slow = next((i for i, update in enumerate(updates) if update.tower == TOWERS - 1), 0)
    for i, update in enumerate(updates):
        if i < 5 or slow - 2 <= i < slow + 2:
            print(f'{update.ms:5.0f} ms  tower {update.tower}: started at {update.started:3}, applied at '
                  f'{update.applied:3}: {update.applied - update.started:3} stale'
                  f'{update.b2_read:11.4f}{update.gradient:10.4f}{update.b2_before:11.4f}{update.b2_after:10.4f}')
        elif i == 5:
            print('      ...')


def show_losses(runs, title):
    """Prints the losses of runs, {label: Updates}, after numbers of updates and after milliseconds."""
    print(f'\nLoss of {title} (simulated). The number after the mode is the learning rate:')
    print(f'{"":22}{"after updates":>27}   {"after milliseconds":>36}')
    print(f'{"":22}{common.numbers(AT_UPDATES, 0, 9)}   {common.numbers(AT_MS, 0, 9)}')
    for label, made in runs.items():
        by_updates = [made[:count] if count <= len(made) or diverged(made) else [] for count in AT_UPDATES]
        by_time = [[update for update in made if update.ms <= ms] for ms in AT_MS]
        print(f'{label:22}{"".join(map(shown_loss, by_updates))}   {"".join(map(shown_loss, by_time))}')


def shown_loss(updates):
    """Returns the last loss of some updates, in 9 characters; '-' for none."""
    return f'{"-" if not updates else "huge" if diverged(updates) else f"{updates[-1].loss:.4f}":>9}'


def show_causes(training, rate, own_rate, synchronous, asynchronous):
    """Prints the losses of two runs after numbers of updates, and in between the losses of one change at a time."""
    def not_stale(batches, rate):
        return train(simulate_synchronous, training, rate, [TOWER_MS] * batches)

    print('\nFrom synchronous to asynchronous updates of equal towers, one change at a time (simulated):')
    print(f'{"":38}{"after updates":>27}\n{"":38}{common.numbers(AT_UPDATES, 0, 9)}')
    for label, made in ((f'synchronous: {TOWERS} batches, {rate:.3g}', synchronous),
                        (f'another rate: {TOWERS} batches, {own_rate:.3g}', not_stale(TOWERS, own_rate)),
                        (f'fewer examples: 1 batch, {rate:.3g}', not_stale(1, rate)),
                        (f'both: 1 batch, {own_rate:.3g}', not_stale(1, own_rate)),
                        (f'both, and stale: asynchronous, {own_rate:.3g}', asynchronous)):
        print(f'{label:38}' + ''.join(shown_loss(made[:count]) for count in AT_UPDATES))


def show_threads(synchronous, waited, asynchronous, title):
    """Prints the updates and waiting times of the threads in real time."""
    print(f'\nThe same in threads, {title}, for {THREADS_MS} ms of real time (the numbers differ from run to run):')
    slowest, update = np.mean(waited, 0)
    print(f'synchronous   {len(synchronous):4} updates, loss {synchronous[-1].loss:.4f}; for each, a tower waited\n'
          f'{"":19}{slowest:.1f} ms for the slowest tower and {update:.1f} ms for the update')
    print(f'asynchronous  {len(asynchronous):4} updates, loss {asynchronous[-1].loss:.4f}')
    for k in range(TOWERS):
        own = [update for update in asynchronous if update.tower == k]
        if own:
            staleness = [update.applied - update.started for update in own]
            print(f'     tower {k}  {len(own):4} updates, {np.mean(staleness):4.1f} stale on average; the last: '
                  f'started at {own[-1].started}, applied at {own[-1].applied}: {staleness[-1]} stale')


def draw(path, tables):
    """Draws losses against updates and against seconds into a PNG file; {title: {label: Updates}}, a row for each."""
    from matplotlib import pyplot
    # The wide line shows below the narrow one where both are equal; the jagged one is behind them.
    styles = (dict(color='C1', linewidth=4, alpha=0.5), dict(color='black', linewidth=1),
              dict(color='0.75', linewidth=0.8, zorder=1))
    figure, rows = pyplot.subplots(len(tables), 2, figsize=(9, 3.2 * len(tables)), sharey=True, layout='constrained')
    for row, (title, runs) in zip(rows, tables.items()):
        for (label, made), style in zip(runs.items(), styles):
            losses = [update.loss for update in made]
            row[0].plot([update.applied + 1 for update in made], losses, label=label, **style)
            row[1].plot([update.ms / 1000 for update in made], losses, label=label, **style)
        row[0].set(ylabel='loss', yscale='log', ylim=(0.03, 5), xlim=(0, None))
        row[0].set_yticks([0.1, 1], ['0.1', '1'])
        row[0].set_title(title, loc='left', fontsize='medium')
        row[1].set(xlim=(0, SIMULATED_MS / 1000))
    rows[-1][0].set_xlabel('updates')
    rows[-1][1].set_xlabel('seconds (simulated)')
    figure.legend(*rows[0][0].get_legend_handles_labels(), loc='outside upper center', ncols=len(styles),
                  title='mode, learning rate', fontsize='small', title_fontsize='small', frameon=False)
    common.save(figure, path)


def main():
    """Reads the flags, simulates, and runs the threads."""
    parser = common.parser(__doc__, plot='the loss against updates and against seconds')
    parser.add_argument('--slow', type=flags.at_least(1), default=4, metavar='TIMES',
                        help='factor by which the last tower is slower than the others (default: %(default)s)')
    parser.add_argument('--rate', type=flags.positive, default=0.1, metavar='RATE',
                        help='learning rate of a synchronous update (default: %(default)s)')
    arguments = common.parse(parser)
    training = Training(common.choose_devices(arguments.device, TOWERS))
    rate = arguments.rate
    own_rate = rate / TOWERS  # of a tower's own update, which has seen one batch, not TOWERS batches
    slow = [TOWER_MS] * (TOWERS - 1) + [TOWER_MS * arguments.slow]
    slow_title = f'{TOWERS - 1} towers of {TOWER_MS} ms and one of {slow[-1]} ms'
    tables = {}
    for title, durations in ((f'{TOWERS} towers of {TOWER_MS} ms', [TOWER_MS] * TOWERS), (slow_title, slow)):
        tables[title] = {
            f'synchronous, {rate:.3g}': train(simulate_synchronous, training, rate, durations),
            f'asynchronous, {own_rate:.3g}': train(simulate_asynchronous, training, own_rate, durations),
            f'asynchronous, {rate:.3g}': train(simulate_asynchronous, training, rate, durations)}
    show_first(tables[slow_title][f'asynchronous, {own_rate:.3g}'], slow_title, own_rate)
    for title, runs in tables.items():
        show_losses(runs, title)
    synchronous, asynchronous, _ = tables[f'{TOWERS} towers of {TOWER_MS} ms'].values()
    show_causes(training, rate, own_rate, synchronous, asynchronous)
    show_threads(*train(run_synchronous, training, rate, slow), train(run_asynchronous, training, own_rate, slow),
                 slow_title)
    if arguments.plot:
        draw(arguments.plot, tables)


if __name__ == '__main__':
    sys.exit(program.run(main))
