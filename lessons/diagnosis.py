#!/usr/bin/env python3
"""Lesson 11, stuck, slow or wrong: a training with a planted fault, and measurements of it from outside.

    python lessons/diagnosis.py --fault=slow_tower
    python lessons/diagnosis.py --seed=3              # which fault is it? --answer shows it

Four towers train with a copy of the variables each, as in lesson 3. One of eight faults is planted, or none. The lesson
prints the same measurements for every fault: the seconds of each tower, its examples, the movement of the variables
and the right movement, and the places where the copies differ. If a tower stopped, all other towers would wait for
ever, so each update has a time limit.

Computing is simulated by sleeps. In the package: docs/trouble.md. Exercises: lessons/exercises/diagnosis.py.
"""
import os
import re
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
from cifar10.programs import flags  # noqa: E402
from lessons import check, common, timeline  # noqa: E402
from lessons.all_reduce import collective_all_reduce  # noqa: E402
from lessons.checkers import child  # noqa: E402
from lessons.timeline import Bar, Row, draw  # noqa: E402

EXERCISE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'exercises', 'diagnosis.py')
FAULTS = ('none', 'stopped', 'slow_tower', 'slow_input', 'sum', 'not_shared', 'flipped_bit', 'small_rate', 'same_batch')
TOWERS, BATCH, UPDATES = 4, 4, 6
INPUT, COMPUTING, LIMIT = 0.02, 0.1, 3  # seconds: waiting for a batch, computing, the limit of an update
RATE = 0.01  # for a batch of 4; in proportion to the batch, 0.04 for 16
ENDED = re.compile(rb'Aborting RingReduce|StartAbort|Restart your program')  # TensorFlow's lines on an ended update
LATE = 3  # number of an update, from 0: a bit is flipped before it, a tower stops in it


def examples(numbers):
    """Returns the inputs and targets of examples, float32: points near the line y = 2 x + 1."""
    x = (numbers * 5 % 7 - 3).astype(np.float32)
    return x, (2 * x + 1 + (numbers % 3 - 1) / 2).astype(np.float32)


class Training:
    """Four towers, one on each device, with a fault.

    Attributes:
      run: the measurements; lessons/exercises/diagnosis.py describes the arrays.
      rows: timeline of the towers' work, for `lessons.timeline`.
    """

    def __init__(self, devices, fault, tower):
        self._fault, self._tower = fault, tower
        self._began = 0
        nothing = np.full([UPDATES, TOWERS, 2], np.nan)
        self.run = dict(input=nothing[:, :, 0].copy(), computing=nothing[:, :, 0].copy(), copies=nothing.astype('f4'),
                        examples=np.zeros([UPDATES, TOWERS, BATCH], int), moved=nothing[:, 0].copy(),
                        right=nothing[:, 0].copy())
        self.rows = [Row(device, []) for device in devices]
        self._update = tf.placeholder(tf.int64, [])
        self._copies, gradients = [], []
        for k, device in enumerate(devices):
            with tf.device(device):
                self._copies.append(tf.get_variable(f'line_{k}', initializer=np.zeros(2, np.float32)))
                with tf.device(f'/cpu:{k}'):
                    batch = tf.py_func(self._work, [self._update, k], [tf.float32] * 2)
                line = self._copies[k].read_value()
                loss = tf.reduce_mean(tf.square(line[0] * batch[0] + line[1] - batch[1]))
                gradients += tf.gradients(loss, line)
                gradients[k].set_shape([2])
        sums = collective_all_reduce(gradients, devices)
        rate = RATE if fault == 'small_rate' else RATE * TOWERS
        changes = []
        for copy, own, total in zip(self._copies, gradients, sums):
            with tf.device(copy.device):
                mean = total if fault == 'sum' else total / TOWERS
                if fault == 'not_shared':  # the second variable of each tower is its own
                    mean = tf.stack([mean[0], own[1]])
                changes.append(copy.assign_sub(rate * mean))
        self._change = tf.group(changes)
        bits = tf.bitcast(self._copies[tower].read_value(), tf.int32)
        self._flip = self._copies[tower].assign(tf.bitcast(tf.bitwise.bitwise_xor(bits, [1 << 20, 0]), tf.float32))

    def _work(self, update, k):
        """Simulates the input and the computing of a tower in an update; returns the batch."""
        ends = [time.perf_counter() - self._began]
        numbers = (update * TOWERS + (0 if self._fault == 'same_batch' else k)) * BATCH + np.arange(BATCH)
        self.run['examples'][update, k] = numbers
        fault = self._fault if k == self._tower or self._fault == 'slow_input' else None
        for kind, seconds in (('input', INPUT * (10 if fault == 'slow_input' else 1)),
                              ('computing', COMPUTING * (2.5 if fault == 'slow_tower' else 1))):
            if kind == 'computing' and fault == 'stopped' and update == LATE:
                # TensorFlow waits for a Python function even after the limit, so this one has to return in the end.
                time.sleep(LIMIT + 0.5)
                break
            time.sleep(seconds)
            ends.append(time.perf_counter() - self._began)
            self.run[kind][update, k] = ends[-1] - ends[-2]
            self.rows[k].bars.append(Bar(f'{kind[0].upper()}{update}', *ends[-2:]))
        return examples(numbers)

    def train(self, session):
        """Makes the updates; returns the seconds of each update, and the error of the last one if it did not end."""
        initialise = tf.global_variables_initializer()
        session.run(initialise)
        session.run(self._change, {self._update: 0})  # the first run of a graph is slow; it is not measured
        session.run(initialise)
        self._began, took, before = time.perf_counter(), [], np.zeros([TOWERS, 2], np.float32)
        self.rows = [Row(row.device, []) for row in self.rows]
        limited = tf.RunOptions(timeout_in_ms=1000 * LIMIT)
        for update in range(UPDATES):
            if self._fault == 'flipped_bit' and update == LATE:
                session.run(self._flip.op)
            start = time.perf_counter()
            try:
                session.run(self._change, {self._update: update}, options=limited)
            except tf.errors.DeadlineExceededError as error:
                self.run = {name: values[:update + 1] for name, values in self.run.items()}
                return took, error
            took.append(time.perf_counter() - start)
            after = session.run(self._copies)
            self.run['copies'][update], self.run['moved'][update] = after, after[0] - before[0]
            x, y = examples((update * TOWERS * BATCH) + np.arange(TOWERS * BATCH))
            # The update by hand: all examples, and the rate for the whole batch.
            errors = before[0][0] * x + before[0][1] - y
            gradient = np.array([np.mean(2 * errors * x), np.mean(2 * errors)])
            self.run['right'][update] = -RATE * TOWERS * gradient
            before = after
        return took, None


def show(training, took, error):
    """Prints the measurements."""
    run = training.run
    last = [[bar for bar in row.bars if int(bar.name[1:]) > run['input'].shape[0] - 3] for row in training.rows]
    zero = min(bar.start for bars in last for bar in bars)
    print('\nThe last two updates (I: a tower waits for its input, C: it computes):')
    print(timeline.text([Row(row.device, [Bar(bar.name, bar.start - zero, bar.end - zero) for bar in bars])
                         for row, bars in zip(training.rows, last)]))
    print('\nSeconds, the median of the updates:\n          input  computing')
    each = [np.nanmedian(run[kind], 0) for kind in ('input', 'computing')]
    for k, (waits, computes) in enumerate(zip(*each)):
        print(f'tower {k} {waits:7.3f} {computes:10.3f}')
    print(f'An update takes {np.median(took):.2f}; predicted, the slowest tower: {np.add(*each).max():.2f}')
    if error:
        done = ' '.join(str(k) for k in range(TOWERS) if not np.isnan(run['computing'][-1, k]))
        print(f'Update {len(took)} did not end within {LIMIT} s ({type(error).__name__}). Computed: towers {done}')
    print('\n        examples         tower 0 moved          by hand        towers whose copy differs from most\n'
          'update  all  different   weight    bias      weight    bias      weight     bias')
    for update in range(len(took)):
        numbers, copies = run['examples'][update], run['copies'][update]
        odd = [' '.join(str(k) for k in range(TOWERS) if sum(copies[:, v] == copies[k, v]) * 2 <= TOWERS) or '-'
               for v in range(2)]
        print(f'{update:6}{numbers.size:5}{len(set(numbers.flat)):11}{common.numbers(run["moved"][update], 4, 9)}'
              f'   {common.numbers(run["right"][update], 4, 9)}      {odd[0]:9}  {odd[1]}')


def main():
    """Reads the flags, trains with the fault, and prints the measurements."""
    parser = common.parser(__doc__, plot='the timeline')
    parser.add_argument('--fault', choices=FAULTS, help='the fault to plant (default: drawn from --seed)')
    parser.add_argument('--seed', type=flags.at_least(0), default=0, metavar='SEED',
                        help='seed for the fault and its tower (default: %(default)s)')
    parser.add_argument('--answer', action='store_true', help='print the planted fault at the end')
    parser.add_argument('--exercise', action='store_true', help='print the diagnosis of your `diagnose`')
    arguments = common.parse(parser)
    diagnose = written_diagnosis() if arguments.exercise else None
    random = np.random.default_rng(arguments.seed)
    fault, tower = arguments.fault or str(random.choice(FAULTS)), int(random.integers(TOWERS))
    devices = common.choose_devices(arguments.device, TOWERS)
    training = Training(devices, fault, tower)
    print(f'{TOWERS} towers of {BATCH} examples, {UPDATES} updates. A tower should have its input after {INPUT} s, and '
          f'compute for {COMPUTING} s.\nOne fault is planted, or none.')
    with common.session(devices, threads=4 * TOWERS) as session, startup.quiet_stderr(ENDED):
        took, error = training.train(session)
    show(training, took, error)
    if diagnose:
        print(f'\nYour diagnosis: {diagnose(training.run)}')
    if arguments.answer:
        print(f'\nPlanted: {fault}' + (f', tower {tower}' if fault in ('stopped', 'slow_tower', 'flipped_bit') else ''))
    if arguments.plot:
        draw(arguments.plot, [(f'{TOWERS} towers', training.rows)], {'I': 'input', 'C': 'computing'})
        print(f'\nwritten {arguments.plot}')


def written_diagnosis():
    """Returns the reader's function `diagnose`; raises a UsageError if it is not right."""
    verdict = check.verdict(11, 'diagnose', EXERCISE).text
    if verdict != 'right':
        raise UsageError(f'--exercise: {verdict}')
    return child.load(EXERCISE, 'diagnose')


if __name__ == '__main__':
    sys.exit(program.run(main))
