#!/usr/bin/env python3
"""Lesson 8, how fast? What a step takes with K towers, what sending adds, and which clock is right.

    python lessons/how_fast.py
    python lessons/how_fast.py --delay=0 --plot=/tmp/how_fast.png

Sleeps of stated lengths stand in for computing and sending, so the formulas' milliseconds and the measured ones agree
on any machine, however few cores it has. First K towers divide a part of a step, and the rest limits the speed-up
(Amdahl 1967). Then gradients are sent, after the backward pass or during it, in buckets of layers (Li et al. 2020).
Then one step is timed in several ways. At the end are figures of the classic network, which sleeps nowhere.

In the package: `--explain` says where the time of a step goes; cifar10/parallel/packing.py makes one message of many
small gradients. Exercises: lessons/exercises/how_fast.py; --exercise applies yours to the tutorial's table.
"""
import concurrent.futures
import os
import re
import sys
import time

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cifar10.base import startup  # noqa: E402
from cifar10.programs import program  # noqa: E402

startup.start_tensorflow()

import tensorflow.compat.v1 as tf  # noqa: E402

from cifar10.programs import flags  # noqa: E402
from cifar10.tools.timeline import draw  # noqa: E402
from lessons import common, timeline  # noqa: E402

SERIAL_MS, DIVIDED_MS = 20, 160  # of a step: half of the first to read the batch, half to update; the second divided
TOWERS = (1, 2, 4, 8)
LAYERS, BACKWARD_MS = 8, 10  # of the pass whose gradients are sent: the layers, and the milliseconds of each
FORWARD_MS, BACK_MS, UPDATE_MS = 20, 40, 20  # of the step that is timed in several ways
ROUNDS = 5  # of which the fastest counts: whatever else the machine does only adds to it
# Seconds of a step of two workers: to compute, to send, measured (docs/scaling.md, "What a step costs").
CLASSIC = {'parameter_server, 1 Gbit/s': (0.058, 0.068, 0.079), 'replicated, 1 Gbit/s': (0.061, 0.034, 0.079),
           'parameter_server, 100 Mbit/s': (0.058, 0.683, 0.688), 'replicated, 100 Mbit/s': (0.061, 0.342, 0.400)}
# The tutorial's table: GPUs, its "sec/batch" (lowest, highest), updates, and the hours that it says they took.
TABLE = (('K20m', 1, 0.35, 0.60, 60000, 5), ('K40m', 1, 0.25, 0.35, 100000, 4), ('K20m', 2, 0.13, 0.20, 30000, 2.5),
         ('K20m', 3, 0.13, 0.18, 30000, None), ('K20m', 4, 0.10, 0.10, 30000, None))


def sleep(inputs, ms, name):
    """Builds a float32 scalar that is there `ms` milliseconds after the tensors `inputs`."""
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
    """Builds a backward pass on /cpu:0 whose gradients are sent over a link, /cpu:1; returns the last message.

    Args:
      bucket: how many layers are sent in a message.
      delay, send: milliseconds of a message, and of each layer in it.
      during: whether a bucket is sent as soon as it is complete, or after the whole pass.
    """
    gradients, messages = [tf.constant(0.0)], []
    with tf.device('/cpu:0'):
        for layer in reversed(range(LAYERS)):  # the gradient of the last layer is there first
            gradients.append(sleep(gradients[-1:], BACKWARD_MS, f'B{layer}'))
    with tf.device('/cpu:1'):
        for last in range(bucket, LAYERS + 1, bucket):
            # The link sends one message at a time, so each waits for the one before it.
            waits_for = [gradients[last if during else LAYERS], *messages[-1:]]
            messages.append(sleep(waits_for, delay + bucket * send, f'S{LAYERS - last}'))
    return messages[-1]


def predict_backward(bucket, delay, send, during):
    """Returns the milliseconds of `build_backward` as the page's formulas have them."""
    messages, message = LAYERS // bucket, delay + bucket * send
    if during:  # either the pass never waits, and the last message follows it, or the link never does
        return max(LAYERS * BACKWARD_MS + message, bucket * BACKWARD_MS + messages * message)
    return LAYERS * BACKWARD_MS + messages * message


def run(devices, bar, build, *arguments):
    """Builds a graph and runs it several times; returns (milliseconds of the fastest run, timeline of one).

    Args:
      devices: how many devices the graph uses.
      bar: regular expression; an operation whose name it matches has a bar in the timeline.
      build: function that takes the arguments, builds the graph, and returns the tensor to fetch.
    """
    with tf.Graph().as_default():
        fetched, metadata = build(*arguments), tf.RunMetadata()
        with common.session([f'/cpu:{k}' for k in range(devices)], threads=4 * devices) as session:
            session.run(fetched)  # the first run of a graph is slow
            fastest = min(clocked(lambda: session.run(fetched)) for _ in range(ROUNDS))
            session.run(fetched, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
    return fastest, timeline.rows(metadata.step_stats, lambda name: name if re.fullmatch(bar, name) else None)


def clocked(function):
    """Returns the milliseconds that a function takes."""
    begin = time.perf_counter()
    function()
    return 1000 * (time.perf_counter() - begin)


def show_speed_up():
    """Prints what Amdahl's formula predicts for K towers, and what was measured; returns the timeline of 4."""
    whole = SERIAL_MS + DIVIDED_MS
    print(f'1. A step of {whole} ms. {DIVIDED_MS} ms of it are divided over K towers.\n'
          f'{"":3}{"ms a step":>22}{"speed-up":>22}{"efficiency":>22}\n{"K":>3}' + '   predicted  measured' * 3)
    timelines, measured = {}, {}
    for K in TOWERS:
        measured[K], timelines[K] = run(K, 'read|tower_.*|update', build_step, K)
        times = SERIAL_MS + DIVIDED_MS / K, measured[K]
        ups = whole / times[0], measured[1] / measured[K]
        print(f'{K:3}{times[0]:12.1f}{times[1]:10.1f}{ups[0]:12.2f}{ups[1]:10.2f}{ups[0] / K:12.0%}{ups[1] / K:10.0%}')
    print(f'With any number of towers the speed-up stays below {whole}/{SERIAL_MS} = {whole / SERIAL_MS:.2f}.')
    return timelines[4]


def show_sending(delay, send):
    """Prints how long backward passes and their messages take together; returns the timelines of three."""
    print(f'\n2. A backward pass of {LAYERS} layers, {BACKWARD_MS} ms each. Their gradients are sent: {delay} ms a '
          f'message and {send} ms a layer in it.\n{"layers in":>9}{"":8}{"sent after the pass, ms":>27}'
          f'{"sent during the pass, ms":>28}\na message  messages' + '    predicted  measured    ' * 2)
    timelines = {}
    for bucket in (8, 4, 2, 1):
        print(f'{bucket:9}{LAYERS // bucket:10}', end='')
        for during in (False, True):
            plan = bucket, delay, send, during
            measured, timelines[bucket, during] = run(2, r'[BS]\d', build_backward, *plan)
            print(f'{predict_backward(*plan):13}{measured:10.1f}', end='\n' if during else '    ')
    shown = {'After the pass, 8 layers in a message': timelines[8, False],
             'During the pass, 2 layers in a message': timelines[2, True],
             'During the pass, each layer in its own': timelines[1, True]}
    print('B7 is the backward pass of layer 7, S6 the message whose first layer is 6.')
    for title, rows in shown.items():
        print(f'{title}:\n{timeline.text(rows)}')
    return shown


def show_clocks():
    """Prints what five wrong clocks and a right one say about the same step."""
    print(f'\n3. A step that takes {FORWARD_MS} ms forward, {BACK_MS} ms backward and {UPDATE_MS} ms to update, as '
          f'timed in several ways.\n{"":44}predicted  measured')
    step = FORWARD_MS + BACK_MS + UPDATE_MS

    def show(title, predicted, measured):
        print(f'{title:44}{predicted:>9}{measured:10.1f}')

    def build():
        loss = sleep([tf.constant(0.0)], FORWARD_MS, 'forward')
        built.extend([loss, sleep([sleep([loss], BACK_MS, 'backward')], UPDATE_MS, 'update')])

    built, futures = [], []
    with tf.Graph().as_default(), concurrent.futures.ThreadPoolExecutor(1) as thread:
        show('building the step, without session.run', 0, clocked(build))
        loss, update = built
        with common.session(['/cpu:0']) as session:
            show('the first session.run(update)', f'> {step}', clocked(lambda: session.run(update)))
            session.run(loss)
            show('session.run(loss)', FORWARD_MS, min(clocked(lambda: session.run(loss)) for _ in range(ROUNDS)))
            show('another thread calls session.run(update)', 0,
                 begun := clocked(lambda: futures.append(thread.submit(session.run, update))))
            show('... and its result is waited for', step, begun + clocked(lambda: futures[0].result()))
            show('session.run(update)', step, min(clocked(lambda: session.run(update)) for _ in range(ROUNDS)))


def show_classic():
    """Prints figures of the classic network beside what the formulas say."""
    print(f'\n4. Two workers that train the classic network, seconds a step (docs/scaling.md).\n{"":28}'
          '  computing  sending     sum  larger  measured')
    for name, (computing, sending, measured) in CLASSIC.items():
        print(f'{name:28}{computing:11.3f}{sending:9.3f}{computing + sending:8.3f}{max(computing, sending):8.3f}'
              f'{measured:10.3f}')


def main():
    """Reads the flags and tells the story."""
    parser = flags.Parser(__doc__.splitlines()[0])
    for name, default, said in (('delay', 8, 'that each message takes'), ('send', 4, 'that each layer in it takes')):
        parser.add_argument(f'--{name}', type=flags.at_least(0), default=default, metavar='MS',
                            help=f'milliseconds {said} (default: %(default)s)')
    parser.add_argument('--plot', metavar='FILE', help='PNG file to draw timelines into; needs matplotlib')
    arguments = common.parse(parser)
    print('Computing and sending are sleeps in parts 1 to 3.\n')
    timelines = {'A step of 4 towers': show_speed_up(), **show_sending(arguments.delay, arguments.send)}
    show_clocks()
    show_classic()
    if arguments.plot:
        draw(arguments.plot, list(timelines.items()),
             {'read': 'read the batch', 'tower': 'tower', 'update': 'update', 'B': 'backward', 'S': 'send'})
        print(f'\nwritten {arguments.plot}')


if __name__ == '__main__':
    sys.exit(program.run(main))
