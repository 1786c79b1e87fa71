#!/usr/bin/env python3
"""Lesson 3, all-reduce: every device has its own copy of the parameters, and gets the sum of all gradients.

    python lessons/all_reduce.py --devices=4

It copies 8 parameters to each device and computes a gradient there. Then it adds the gradients in three ways: on the
first device, step by step in a ring of devices, and with TensorFlow's CollectiveReduce. It prints all values, and
counts the bytes that device 0 receives and sends, and the bytes on each link of the ring. The gradients are 1 2 3 ...
on device 0, 10 20 30 ... on device 1 and 100 200 300 ... on device 2, so the digits of a sum show which devices it
includes.

In the package: `means_over_towers` in cifar10/parallel/all_reduce.py. Exercises: lessons/exercises/all_reduce.py.
"""
import collections
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

PARAMETERS = 8
RATE = 0.001


def copy_parameters(devices):
    """Creates the parameters on the first device and a copy on each other device; returns the D variables."""
    copies = []
    for d, device in enumerate(devices):
        with tf.device(device):
            start = copies[0].initial_value if d else tf.range(1.0, PARAMETERS + 1)
            copies.append(tf.get_variable(f'weights_{d}', initializer=start))
    return copies


def gradients_of(copies, devices):
    """Builds a loss for each device, 10^d * |weights|^2 / 2, and returns its gradient: 10^d * weights."""
    gradients = []
    for d, device in enumerate(devices):
        with tf.device(device):
            gradients += tf.gradients(10.0 ** d * tf.nn.l2_loss(copies[d]), copies[d])
    return gradients


def naive_all_reduce(gradients, devices):
    """Copies all gradients to the first device, adds them there, and copies the sum to every device."""
    with tf.device(devices[0]):
        total = tf.add_n([tf.identity(gradient) for gradient in gradients])
    sums = []
    for device in devices:
        with tf.device(device):
            sums.append(tf.identity(total))
    return sums


def ring_all_reduce(gradients, devices):
    """Adds the gradients in a ring: device d sends to device d + 1, and the last one to device 0.

    Returns:
      The 2 * (D - 1) steps. For each step: the D x D chunks after it, and the number of the chunk that each device
      received.
    """
    count = len(devices)
    chunks = []  # [device][chunk]
    for gradient, device in zip(gradients, devices):
        with tf.device(device):
            chunks.append(tf.split(gradient, count))
    steps = []
    for step in range(2 * (count - 1)):
        before = [list(own) for own in chunks]  # all devices send at the same time
        for sender in range(count):
            receiver, chunk = (sender + 1) % count, (sender - step) % count
            with tf.device(devices[receiver]):
                arrived = tf.identity(before[sender][chunk])
                if step < count - 1:  # reduce-scatter: add what arrives
                    chunks[receiver][chunk] = before[receiver][chunk] + arrived
                else:  # all-gather: keep what arrives
                    chunks[receiver][chunk] = arrived
        steps.append(([list(own) for own in chunks], [(d - 1 - step) % count for d in range(count)]))
    return steps


def collective_all_reduce(gradients, devices):
    """Returns the sums that TensorFlow's own all-reduce computes: with a ring, or with NCCL between GPUs."""
    hint = 'nccl' if 'gpu' in devices[0] else 'ring'
    sums = []
    for gradient, device in zip(gradients, devices):
        with tf.device(device):
            sums.append(tf.raw_ops.CollectiveReduce(
                input=gradient, group_size=len(devices), group_key=1, instance_key=1, merge_op='Add', final_op='Id',
                subdiv_offsets=[0], communication_hint=hint))
    return sums


def bytes_carried(all_reduce, count):
    """Builds an all-reduce over `count` devices in a graph of its own; returns {(sender, receiver): bytes}."""
    devices = [f'/cpu:{d}' for d in range(count)]
    carried = collections.Counter()
    with tf.Graph().as_default() as graph:
        gradients = gradients_of(copy_parameters(devices), devices)
        before = set(graph.get_operations())
        all_reduce(gradients, devices)
        for operation in set(graph.get_operations()) - before:
            for tensor in operation.inputs:
                sender, receiver = (int(device[-1]) for device in (tensor.device, operation.device))
                if sender != receiver:
                    carried[sender, receiver] += tensor.shape.num_elements() * tensor.dtype.size
    return carried


def show(values):
    """Prints a line of numbers for each device."""
    for d, value in enumerate(values):
        print(f'  device {d} {common.numbers(value, 0)}')


def show_ring(session, steps):
    """Prints the chunks of every device after each step of the ring, the received chunk in brackets.

    Returns:
      The values, steps x D devices x D chunks.
    """
    values = session.run([chunks for chunks, _ in steps])
    for step, (devices, (_, received)) in enumerate(zip(values, steps)):
        adding = step < len(steps) // 2
        print(f"Step {step + 1}: every device sends one chunk to the next, which {'adds' if adding else 'keeps'} it")
        for d, chunks in enumerate(devices):
            texts = [common.numbers(chunk, 0, 6) for chunk in chunks]
            print(f'  device {d} ' + ''.join(f' [{text[1:]} ]' if c == received[d] else f' {text}  '
                                             for c, text in enumerate(texts)).rstrip())
    return values


def show_bytes():
    """Prints, for some numbers of devices, the bytes that device 0 receives and sends, and the bytes on a link."""
    print(f'\nBytes for {PARAMETERS} parameters of 4 bytes each, n = {4 * PARAMETERS}, counted in the graphs:')
    print('             received and sent by device 0            on each link')
    print('             naive: 2 (D - 1) n  ring: 4 n (D - 1) / D  of the ring: 2 n (D - 1) / D')
    for count in (2, 4, 8):
        naive = bytes_carried(naive_all_reduce, count)
        ring = bytes_carried(ring_all_reduce, count)
        of_first = [sum(size for link, size in carried.items() if 0 in link) for carried in (naive, ring)]
        print(f'  D = {count} {of_first[0]:23} {of_first[1]:22} {max(ring.values()):30}')


def draw(path, values):
    """Draws how many gradients each chunk on each device includes, after each step of the ring."""
    from matplotlib import pyplot
    figure, panels = pyplot.subplots(1, len(values), figsize=(1.5 * len(values), 1.9), layout='constrained')
    for step, (devices, axes) in enumerate(zip(values, panels), 1):
        # The first parameter of chunk c is a whole number times 1, 10, 11, 100 ...: each device adds one digit.
        included = [[str(round(float(chunk[0]))).replace('0', '') for chunk in chunks] for chunks in devices]
        counts = [[len(digits) for digits in row] for row in included]
        axes.imshow(counts, cmap='Blues', vmin=0, vmax=len(devices) + 1)
        for d, row in enumerate(counts):
            for c, count in enumerate(row):
                axes.text(c, d, count, ha='center', va='center', fontsize=9,
                          color='white' if count == len(devices) else 'black')
        axes.set(title=f'step {step}', xlabel='chunk', xticks=range(len(devices)), yticks=range(len(devices)))
    panels[0].set_ylabel('device')
    common.save(figure, path)


def tell(devices):
    """Runs the lesson on D devices; returns the values from `show_ring`."""
    copies = copy_parameters(devices)
    gradients = gradients_of(copies, devices)
    naive = naive_all_reduce(gradients, devices)
    steps = ring_all_reduce(gradients, devices)
    collective = collective_all_reduce(gradients, devices)
    # Each sum needs all gradients, so no copy changes before every device has read its copy.
    update = tf.group([copy.assign_sub(RATE * total / len(devices))
                       for copy, total in zip(copies, collective)])
    with common.session(devices) as session:
        session.run(tf.global_variables_initializer())
        print('The parameters, copied to every device:')
        show(session.run(copies))
        print('\nThe gradients, before the all-reduce:')
        show(session.run(gradients))
        print('\nAfter the naive all-reduce (copy to device 0, add, copy back):')
        show(session.run(naive))
        print(f'\nThe ring, with {len(devices)} chunks:')
        values_of_ring = show_ring(session, steps)
        show_bytes()
        sums = [np.concatenate(chunks) for chunks in session.run(steps[-1][0])]
        print('\nAfter CollectiveReduce:')
        values = session.run(collective)
        show(values)
        print(f'Largest difference from the ring: {np.abs(np.subtract(values, sums)).max():g}')
        session.run(update)
        print(f'\nThe parameters after the update, parameter - {RATE} * sum / {len(devices)}:')
        for d, value in enumerate(session.run(copies)):
            print(f'  device {d} {common.numbers(value)}')
    return values_of_ring


def main():
    """Reads the flags and runs the lesson."""
    parser = common.parser(__doc__, plot='the steps of the ring')
    parser.add_argument('--devices', type=int, choices=(2, 4), default=4, help='number of devices (default: 4)')
    arguments = common.parse(parser)
    values_of_ring = tell(common.choose_devices(arguments.device, arguments.devices))
    if arguments.plot:
        draw(arguments.plot, values_of_ring)


if __name__ == '__main__':
    sys.exit(program.run(main))
