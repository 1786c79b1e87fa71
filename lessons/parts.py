#!/usr/bin/env python3
"""Lesson 7, parts: one model divided over two devices, and micro-batches, which make the devices wait less.

    python lessons/parts.py
    python lessons/parts.py --parts=4 --micro_batches=8

Each device holds one layer of the model. Only activations travel forward, and only their gradients travel back. The
lesson prints the timelines of one batch, whole and in micro-batches, from TensorFlow's own trace, with the share of
time that is lost (the bubble). Then it prints the gradients, which are the same, the memory of each part, and a table
that says when to choose parts instead of towers.

The layers are tiny, so that their numbers can be checked. Before a device computes one, it sleeps as long as a large
layer might take. So even a machine with two cores shows the timeline of large layers.

In the package: `next_part` marks the possible cuts in `inference` of cifar10/model/classic.py;
--gpus_per_tower=2 gives each tower two devices, and cifar10/parallel/turns.py makes the towers wait for each other.
Exercise: lessons/exercises/parts.py. Once it is right, --exercise runs the lesson in the order that it returns.
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
from lessons.checkers import child  # noqa: E402
from lessons.timeline import draw, seconds  # noqa: E402

EXERCISE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'exercises', 'parts.py')
EXAMPLES = 24  # in a batch
SECONDS = {'forward': 0.1, 'backward': 0.2}  # the time of a part for a whole batch


def batch():
    """Returns (x, y), float32 [24, 2] each: inputs, which are small whole numbers, and targets."""
    x = np.arange(2 * EXAMPLES, dtype=np.float32).reshape(EXAMPLES, 2) % 7 - 3
    return x, x[:, ::-1]


def layer(part):
    """Returns the variables of a part, on its own device: weights [2, 2] and biases [2], 24 bytes."""
    with tf.variable_scope(f'part_{part}'):
        return [tf.get_variable('weights', initializer=[[1.0, 0.5], [-0.5, 1.0]]),
                tf.get_variable('biases', initializer=[0.5, 0.5])]


def all_forward(part, parts, micro_batches):
    """Returns the order of a part's work: all micro-batches forward, then all backward."""
    return [('forward', m) for m in range(micro_batches)] + [('backward', m) for m in range(micro_batches)]


def build(devices, orders, micro_batches, pace):
    """Builds one batch, forward and backward, in micro-batches.

    Args:
      devices: names of the devices of the S parts.
      orders: for each part the order of its work, as `all_forward` returns it.
      micro_batches: M, a divisor of 24.
      pace: float64 scalar that the seconds of all sleeps are multiplied by.

    Returns:
      For each part the mean gradients of its weights [2, 2] and biases [2] over the micro-batches.
    """
    x, y = (np.split(array, micro_batches) for array in batch())
    variables, gradients, previous = [], [[] for _ in devices], [[] for _ in devices]
    for s, device in enumerate(devices):
        with tf.device(device):
            variables.append(layer(s))
    # The received tensors of each part: activations to go forward with, or gradients to go backward with.
    arrived = {(0, 'forward', m): tf.constant(x[m]) for m in range(micro_batches)}
    kept = {}  # (part, micro-batch) -> its input and output, which backward needs
    to_do = [list(order) for order in orders]
    while any(to_do):
        s = next(s for s in range(len(devices)) if to_do[s] and (s, *to_do[s][0]) in arrived)
        kind, m = to_do[s].pop(0)
        # A device does one thing at a time: each begins when the previous one on this device has ended.
        with tf.device(devices[s]), tf.name_scope(f'part_{s}/{kind}_{m}'), \
                tf.control_dependencies(previous[s]):
            value = sleep(arrived[s, kind, m], s, pace * SECONDS[kind] / micro_batches)
            if kind == 'forward':
                output = value @ variables[s][0] + variables[s][1]
                if s + 1 < len(devices):
                    output = tf.nn.relu(output)
                    arrived[s + 1, 'forward', m] = output  # TensorFlow copies it to the next device
                else:
                    loss = tf.reduce_mean(tf.reduce_sum(tf.square(output - y[m]), 1))
                    arrived[s, 'backward', m] = tf.gradients(loss, output)[0]
                kept[s, m] = value, output
                previous[s] = [output]
            else:
                part_input, output = kept[s, m]
                back, *own = tf.gradients(output, [part_input, *variables[s]], grad_ys=value)
                arrived[s - 1, 'backward', m] = back
                gradients[s].append(own)
                previous[s] = [back, *own]
    return [[tf.add_n(each) / micro_batches for each in zip(*of_part)] for of_part in gradients]


def sleep(x, part, seconds):
    """Returns x, float32 [examples, 2], after a Python function of this name on the CPU has slept."""
    def slept(value, seconds):
        time.sleep(seconds)
        return value

    with tf.device(f'/cpu:{part}'):
        after = tf.py_func(slept, [x, seconds], tf.float32, name='sleep')
    after.set_shape(x.shape)
    return after


def run(devices, orders, micro_batches):
    """Runs a batch; returns (gradients, as `build` returns them; the timeline of the sleeps, a row for each part)."""
    def bar(operation):
        found = re.fullmatch(r'part_\d+/(forward|backward)_(\d+)/sleep', operation)
        return found and found.group(1)[0].upper() + found.group(2)  # 'F0', 'B0'

    with tf.Graph().as_default():
        pace = tf.placeholder(tf.float64, [])
        gradients = build(devices, orders, micro_batches, pace)
        metadata = tf.RunMetadata()
        with common.session(devices, threads=4 * len(devices)) as session:
            session.run(tf.global_variables_initializer())
            session.run(gradients, {pace: 0})  # the first run of a graph is slow; the second is traced
            values = session.run(gradients, {pace: 1}, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE),
                                 run_metadata=metadata)
    return values, timeline.rows(metadata.step_stats, bar)


def show_timeline(rows, micro_batches):
    """Prints a timeline and its bubble: the share of the parts' time spent waiting."""
    parts = len(rows)
    print(timeline.text(rows))
    busy = sum(bar.end - bar.start for row in rows for bar in row.bars)
    bubble = 1 - busy / (parts * seconds(rows))
    expected = f'(S-1)/(M+S-1) = {parts - 1}/{micro_batches + parts - 1}'
    print(f'bubble measured {bubble:.0%}; {expected} = {(parts - 1) / (micro_batches + parts - 1):.0%}')


def show_memory(orders, micro_batches):
    """Prints the bytes that each part holds: its variables, and the tensors kept from forward to backward."""
    micro_batch = 2 * 4 * 2 * EXAMPLES // micro_batches  # input and output, [examples, 2] each, 4 bytes a number
    print('part  variables  input and output of a micro-batch  kept at most  together')
    for s, order in enumerate(orders):
        most = max(np.cumsum([1 if kind == 'forward' else -1 for kind, _ in order]))
        print(f'{s:4} {24:8} B {micro_batch:32} B {most:5} x {micro_batch:3} B {24 + most * micro_batch:7} B')


def show_choice(parts, micro_batches):
    """Prints the memory that each device needs for towers and for parts, and the simplest choice that fits."""
    # 1F1B is the order of this lesson's exercise.
    ways = ('towers', f'towers, {micro_batches} turns', 'parts', 'parts, 1F1B')
    print('parameters  batch' + ''.join(f'{way:>17}' for way in ways) + '  choose')
    for billions, examples in ((0.1, 256), (0.1, 2048), (1.2, 64), (1.2, 1024), (3.0, 64)):
        state, activations = 16 * billions, 0.02 * examples / parts  # GB: of the whole model, of a device
        needs = (state + activations, state + activations / micro_batches, state / parts + activations,
                 state / parts + activations * min(parts, micro_batches) / micro_batches)
        choice = next((way for way, need in zip(ways, needs) if need <= 16), 'more devices')
        print(f'{billions:8.1f}e9 {examples:6}' + ''.join(f'{need:14.1f} GB' for need in needs) + f'  {choice}')


def main():
    """Reads the flags and runs the lesson."""
    parser = common.parser(__doc__, plot='the timelines')
    parser.add_argument('--parts', type=flags.at_least(2), default=2, metavar='S',
                        help='number of devices, with one layer each (default: %(default)s)')
    parser.add_argument('--micro_batches', type=flags.at_least(2), default=4, metavar='M',
                        help=f'a divisor of {EXAMPLES} (default: %(default)s)')
    parser.add_argument('--exercise', action='store_true', help='work in the order of your file in lessons/exercises')
    arguments = common.parse(parser)
    S, M = arguments.parts, arguments.micro_batches
    if EXAMPLES % M:
        raise UsageError(f'--micro_batches={M} does not divide the batch of {EXAMPLES}; use a divisor of {EXAMPLES}')
    devices = common.choose_devices(arguments.device, S)
    order_of = written_order() if arguments.exercise else all_forward
    orders = [order_of(s, S, M) for s in range(S)]

    print('A model in parts: ' + ', '.join(f'part {s} on {device}' for s, device in enumerate(devices)))
    print(f'\nOne batch of {EXAMPLES} examples, forward (F0) and backward (B0). Only one part works at a time; '
          'the others wait (.).')
    whole, rows = run(devices, [all_forward(s, S, 1) for s in range(S)], 1)
    show_timeline(rows, 1)
    print(f'\nThe same batch in {M} micro-batches. A part starts on the next one while others work on this one.')
    means, micro_rows = run(devices, orders, M)
    show_timeline(micro_rows, M)
    print(f'\nGradients of the weights: of the whole batch, and the mean over the {M} micro-batches. They are equal.')
    for s in range(S):
        print(f'part {s} {common.numbers(whole[s][0])}   {common.numbers(means[s][0])}')
    print('\nWhat each part holds in the second timeline: it keeps a micro-batch from its F to its B.')
    show_memory(orders, M)
    print(f'\nTowers or parts, on {S} devices of 16 GB each? A tower holds the whole model, for 1/{S} of the batch.\n'
          f'A part holds 1/{S} of the model, for the whole batch. A parameter takes 16 bytes with Adam (value,\n'
          'gradient, two moments); the activations of an example are assumed to take 20 MB. 1F1B is the order\n'
          f'of the exercise, here with {M} micro-batches.')
    show_choice(S, M)
    if arguments.plot:
        draw(arguments.plot, [('One batch', rows), (f'The same batch in {M} micro-batches', micro_rows)],
             {'F': 'forward', 'B': 'backward'})
        print(f'\nwritten {arguments.plot}')


def written_order():
    """Returns the reader's function `order_of_1f1b`; raises a UsageError if it is not right."""
    verdict = check.verdict(7, 'order_of_1f1b', EXERCISE).text
    if verdict != 'right':
        raise UsageError(f'--exercise: {verdict}')
    return child.load(EXERCISE, 'order_of_1f1b')


if __name__ == '__main__':
    sys.exit(program.run(main))
