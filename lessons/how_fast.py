#!/usr/bin/env python3
"""Lesson 9, how fast? The time of a step with K towers, the time of sending, and the right clock.

    python lessons/how_fast.py
    python lessons/how_fast.py --delay=0 --plot=/tmp/how_fast.png

Sleeps of stated lengths stand in for computing and sending, so the formulas' milliseconds and the measured ones agree
on any machine. First K towers divide a part of a step, and the rest limits the speed-up (Amdahl 1967). Then gradients
are sent, after the backward pass or during it (Li et al. 2020). Then one step is timed in several ways.

In the package: `--explain` shows where the time of a step goes; cifar10/parallel/packing.py makes one message of many
small gradients. Exercises: lessons/exercises/how_fast.py; --exercise applies one to the original tutorial's table.
"""
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

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
from lessons.checkers import child  # noqa: E402
from lessons.timeline import draw  # noqa: E402

EXERCISE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'exercises', 'how_fast.py')

SERIAL_MS, DIVIDED_MS = 20, 160  # of a step: half of the first reads the batch, half updates; towers divide the second
LAYERS, BACKWARD_MS = 8, 10  # of the backward pass in part 2: its layers, and the time of each
FORWARD_MS, BACK_MS, UPDATE_MS = 20, 40, 20  # of the step in part 3
ROUNDS = 6  # the fastest counts: the first round is slow, and other work on the machine only adds time
# The tutorial's table: GPUs, lowest and highest sec/batch, updates, and their stated hours.
TABLE = (('1 K20m', 0.35, 0.60, 60000, '5'), ('1 K40m', 0.25, 0.35, 100000, '4'), ('2 K20m', 0.13, 0.20, 30000, '2.5'),
         ('3 K20m', 0.13, 0.18, 30000, '-'), ('4 K20m', 0.10, 0.10, 30000, '-'))


def sleep(inputs, ms, name):
    """Builds a float32 scalar that is ready `ms` milliseconds after the tensors `inputs`."""
    def slept(*values):
        time.sleep(ms / 1000)
        return np.float32(0)

    return tf.py_func(slept, inputs, tf.float32, name=name)


def build_step(K):
    """Builds a step of K towers, each on a device of its own; returns the tensor of its update."""
    with tf.device('/cpu:0'):
        batch = sleep([tf.constant(0.0)], SERIAL_MS / 2, 'read')
    gradients = []
    for k in range(K):
        with tf.device(f'/cpu:{k}'):
            gradients.append(sleep([batch], DIVIDED_MS / K, f'tower_{k}'))
    with tf.device('/cpu:0'):
        return sleep(gradients, SERIAL_MS / 2, 'update')


def build_backward(bucket, delay, send, during):
    """Builds a backward pass on /cpu:0 whose gradients go over a link, /cpu:1, in buckets; returns the last message."""
    gradients, messages = [tf.constant(0.0)], []
    with tf.device('/cpu:0'):
        for layer in reversed(range(LAYERS)):  # the gradient of the last layer is ready first
            gradients.append(sleep(gradients[-1:], BACKWARD_MS, f'B{layer}'))
    with tf.device('/cpu:1'):
        for last in range(bucket, LAYERS + 1, bucket):
            # The link sends one message at a time, so each waits for the one before it.
            waits_for = [gradients[last if during else LAYERS], *messages[-1:]]
            messages.append(sleep(waits_for, delay + bucket * send, f'S{LAYERS - last}'))
    return messages[-1]


def predict_backward(bucket, delay, send, during):
    """Returns the milliseconds of `build_backward` by the page's formulas."""
    messages, message, whole = LAYERS // bucket, delay + bucket * send, LAYERS * BACKWARD_MS
    # During the pass: either only the last message follows it, or the link waits only for the first bucket.
    return max(whole + message, bucket * BACKWARD_MS + messages * message) if during else whole + messages * message


def run(devices, bar, build, *arguments):
    """Builds a graph and runs it on some devices; returns (milliseconds, timeline of operations that match bar)."""
    with tf.Graph().as_default():
        fetched, metadata = build(*arguments), tf.RunMetadata()
        with common.session([f'/cpu:{k}' for k in range(devices)], 4 * devices) as session:
            fastest = clocked(lambda: session.run(fetched), ROUNDS)
            session.run(fetched, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
    return fastest, timeline.rows(metadata.step_stats, lambda name: name if re.fullmatch(bar, name) else None)


def clocked(function, rounds=1):
    """Returns the milliseconds that a function takes, in the fastest of several rounds."""
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        function()
        taken.append(1000 * (time.perf_counter() - begin))
    return min(taken)


def show_speed_up():
    """Prints the speed-ups of K towers by Amdahl's formula and as measured; returns the timelines."""
    whole = SERIAL_MS + DIVIDED_MS
    print(f'1. Sleeps instead of a step of {whole} ms; {DIVIDED_MS} ms of it are divided over K towers.\n'
          f'{"":3}{"ms a step":>22}{"speed-up":>22}{"efficiency":>22}\n{"K":>3}' + '   predicted  measured' * 3)
    timelines, measured = {}, {}
    for K in (1, 2, 4, 8):
        measured[K], timelines[f'A step of {K} towers'] = run(K, 'read|tower_.*|update', build_step, K)
        times = SERIAL_MS + DIVIDED_MS / K, measured[K]
        ups = whole / times[0], measured[1] / measured[K]
        print(f'{K:3}{times[0]:12.1f}{times[1]:10.1f}{ups[0]:12.2f}{ups[1]:10.2f}{ups[0] / K:12.0%}{ups[1] / K:10.0%}')
    print(f'With any number of towers the speed-up stays below {whole}/{SERIAL_MS} = {whole / SERIAL_MS:.2f}.')
    return timelines


def show_sending(delay, send):
    """Prints how long backward passes and their messages take together; returns the timelines of three."""
    print(f'\n2. A backward pass of {LAYERS} layers, {BACKWARD_MS} ms each. Their gradients are sent: {delay} ms a '
          f'message and {send} ms a layer in it.\n{"layers in":>9}{"sent after the pass, ms":>33}'
          f'{"sent during the pass, ms":>27}\na message  messages' + '    predicted  measured' * 2)
    timelines = {}
    for bucket in (8, 4, 2, 1):
        print(f'{bucket:9}{LAYERS // bucket:10}', end='')
        for during in (False, True):
            plan = bucket, delay, send, during
            measured, timelines[bucket, during] = run(2, r'[BS]\d', build_backward, *plan)
            print(f'{predict_backward(*plan):13}{measured:10.1f}', end='\n' if during else '')
    shown = {f'{"During" if during else "After"} the pass, {bucket} layer{"s" * (bucket > 1)} in a message':
             timelines[bucket, during] for bucket, during in ((8, False), (2, True), (1, True))}
    print('B7 is the backward pass of layer 7, S6 the message whose first layer is 6.')
    for title, rows in shown.items():
        print(f'{title}:\n{timeline.text(rows)}')
    return shown


def show_clocks():
    """Prints the times of several clocks for the same step."""
    step = FORWARD_MS + BACK_MS + UPDATE_MS
    print(f'\n3. A step of {FORWARD_MS} ms forward, {BACK_MS} ms backward and {UPDATE_MS} ms to update, timed in '
          f'several ways.\n{"":44}predicted  measured')
    built, futures = {}, []

    def build():
        built['loss'] = sleep([tf.constant(0.0)], FORWARD_MS, 'forward')
        built['update'] = sleep([sleep([built['loss']], BACK_MS, 'backward')], UPDATE_MS, 'update')

    with tf.Graph().as_default(), common.session(['/cpu:0']) as session, ThreadPoolExecutor(1) as thread:
        for title, predicted, function, rounds in (
                ('building the operations', 0, build, 1),
                ('the first session.run(update)', f'> {step}', lambda: session.run(built['update']), 1),
                ('session.run(loss)', FORWARD_MS, lambda: session.run(built['loss']), ROUNDS),
                ('another thread calls session.run(update)', 0,
                 lambda: futures.append(thread.submit(session.run, built['update'])), 1),
                ('... and we wait for its result', step, lambda: futures[0].result(), 1),
                ('session.run(update)', step, lambda: session.run(built['update']), ROUNDS)):
            print(f'{title:44}{predicted:>9}{clocked(function, rounds):10.1f}')


def show_table():
    """Prints the tutorial's table with the reader's function; raises a UsageError if the function is not right."""
    verdict = check.verdict(9, 'read_row', EXERCISE).text
    if verdict != 'right':
        raise UsageError(f'--exercise: {verdict}')
    read_row = child.load(EXERCISE, 'read_row')
    print('GPUs     sec/batch  seconds a step     images/s  speed-up   efficiency      hours   stated')
    for name, low, high, updates, said in TABLE:
        texts = [f'{pair[0]:{kind}}-{pair[1]:{kind}}' for pair, kind in zip(
            [(low, high), *read_row(int(name[0]), low, high, updates)], ('.2f', '.2f', '.0f', '.1f', '.0%', '.1f'))]
        print(name + ''.join(f'{text:>{width}}' for text, width in zip([*texts, said], (12, 16, 13, 10, 13, 11, 9))))


def main():
    """Reads the flags and runs the lesson."""
    parser = flags.Parser(__doc__.splitlines()[0])
    parser.add_argument('--delay', type=flags.at_least(0), default=8, metavar='MS',
                        help='milliseconds of delay for each message (default: 8)')
    parser.add_argument('--send', type=flags.at_least(0), default=4, metavar='MS',
                        help='milliseconds to send the gradients of a layer (default: 4)')
    parser.add_argument('--plot', metavar='FILE', help='PNG file to draw timelines into; needs matplotlib')
    parser.add_argument('--exercise', action='store_true',
                        help="print the tutorial's table with your read_row of lessons/exercises")
    arguments = common.parse(parser)
    if arguments.exercise:
        return show_table()
    timelines = [list(show_speed_up().items())[2], *show_sending(arguments.delay, arguments.send).items()]
    show_clocks()
    if arguments.plot:
        draw(arguments.plot, timelines,
             {'read': 'read the batch', 'tower': 'tower', 'update': 'update', 'B': 'backward', 'S': 'send'})
        print(f'\nwritten {arguments.plot}')


if __name__ == '__main__':
    sys.exit(program.run(main))
