#!/usr/bin/env python3
"""Lesson 8, second part, tensor parallelism: a layer cut by columns and the next one by rows; and which way to choose.

    python lessons/tensor_parallel.py --devices=4

relu(x @ W1) @ W2 is computed on D devices that all have the whole batch and 1/D of the weights. It takes one all-reduce
forward and one backward. The lesson compares the outputs and gradients with one device, counts the bytes that a device
sends in the graph, and computes the other order of cuts. Then a table compares towers, ZeRO 1 to 3 and tensor
parallelism by the size of the model and of the batch.
"""
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
from lessons.ring import all_reduce, bytes_sent, on_each  # noqa: E402
from lessons.sharding import EXAMPLES, WIDTH, whole_numbers  # noqa: E402

HIDDEN = 16  # columns of W1 and rows of W2
SIZE = 16  # GB of a device, for the table


def build(devices, x, y, w1, w2):
    """Builds relu(x @ w1) @ w2 and its gradients, with w1 cut by columns and w2 by rows.

    Args:
      x, y: inputs and targets, float32 [16, 8]; every device has all examples.
      w1, w2: weights, float32 [8, 16] and [16, 8].

    Returns:
      On each device: the outputs, [16, 8], the gradients of x, [16, 8], and of its columns of w1 and its rows of w2.
    """
    columns = on_each(devices, tf.constant, np.split(w1, len(devices), 1))
    rows = on_each(devices, tf.constant, np.split(w2, len(devices), 0))
    inputs = on_each(devices, tf.constant, [x] * len(devices))
    # A device has some hidden units of all examples, and from them a part of each output.
    hidden = on_each(devices, lambda each, part: tf.nn.relu(each @ part), inputs, columns)
    outputs = all_reduce(on_each(devices, tf.matmul, hidden, rows), devices)
    back = on_each(devices, lambda output: (output - y) / EXAMPLES, outputs)
    of_rows = on_each(devices, lambda own, each: tf.matmul(own, each, transpose_a=True), hidden, back)
    back = on_each(devices, lambda each, part, own: tf.matmul(each, part, transpose_b=True) * tf.sign(own),
                   back, rows, hidden)
    of_columns = on_each(devices, lambda each, own: tf.matmul(each, own, transpose_a=True), inputs, back)
    back = all_reduce(on_each(devices, lambda each, part: tf.matmul(each, part, transpose_b=True), back, columns),
                      devices)
    return outputs, back, of_columns, of_rows


def in_numpy(x, y, w1, w2):
    """Returns the outputs and the gradients of x, w1 and w2 on one device."""
    hidden = np.maximum(x @ w1, 0)
    outputs = hidden @ w2
    back = (outputs - y) / EXAMPLES
    back_hidden = back @ w2.T * np.sign(hidden)
    return outputs, back_hidden @ w1.T, x.T @ back_hidden, hidden.T @ back


def show_layers(devices):
    """Prints the differences between cut layers and layers on one device, and the bytes sent."""
    D = len(devices)
    x, y, w1, w2 = arrays = [whole_numbers(seed, *shape) for seed, shape in enumerate(
        [(EXAMPLES, WIDTH), (EXAMPLES, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)])]
    with tf.Graph().as_default(), common.session(devices) as session:
        built = build(devices, *arrays)
        outputs, back, of_columns, of_rows = session.run(built)
        forward, both = bytes_sent(tf.group(built[0])), bytes_sent(tf.group(built))
    found = outputs[0], back[0], np.concatenate(of_columns, 1), np.concatenate(of_rows, 0)
    print(f'relu(x @ W1) @ W2 on D = {D} devices, W1 cut by columns and W2 by rows; x is [{EXAMPLES}, {WIDTH}], '
          f'{x.nbytes} bytes.\nThe largest difference from one device, and what device 0 sends:')
    for name, value, right in zip(('outputs', 'gradient of x', 'gradient of W1', 'gradient of W2'), found,
                                  in_numpy(*arrays)):
        print(f'  {name:15} {np.abs(value - right).max():g}')
    for name, sent, times in (('forward', forward, 1), ('with backward', both, 2)):
        print(f'  {name:15} {sent} B, predicted for {times} all-reduce{"s" * (times > 1)} of {x.nbytes} B: '
              f'{times} * 2 (D - 1) / D * {x.nbytes} = {times * 2 * (D - 1) * x.nbytes // D}')
    parts = [a @ b for a, b in zip(np.split(x, D, 1), np.split(w1, D, 0))]
    wrong = sum(np.maximum(part, 0) for part in parts) @ w2
    print(f'W1 cut by rows instead, and ReLU on each part before the sum: wrong by up to '
          f'{np.abs(wrong - found[0]).max():g}.')


def show_choice(D):
    """Prints the gigabytes that a device holds and sends in each way, and the first way that fits."""
    print(f'\nOn {D} devices of {SIZE} GB: GB that a device holds, and in brackets GB that it sends in an update.\n'
          'A parameter takes 16 bytes with Adam (float32); an example has 20 MB of activations, 4 MB of them between\n'
          'layers, where tensor parallelism has them on every device and adds them up, forward and backward.\n'
          'parameters  batch      replicated          ZeRO 1          ZeRO 2          ZeRO 3          tensor  choose')
    for billions, examples in ((0.1, 256), (1.2, 64), (2.0, 64), (3.0, 64), (3.0, 512), (8.0, 64)):
        activations, ring = 0.02 * examples / D, (D - 1) / D
        gradient = 4 * billions
        ways = {'replicated': (16 * billions + activations, 2 * gradient * ring),
                'ZeRO 1': ((8 + 8 / D) * billions + activations, 2 * gradient * ring),
                'ZeRO 2': ((4 + 12 / D) * billions + activations, 2 * gradient * ring),
                'ZeRO 3': (16 / D * billions + activations, 3 * gradient * ring),
                'tensor': (16 / D * billions + (0.004 + 0.016 / D) * examples, 2 * 2 * 0.004 * examples * ring)}
        fitting = [way for way, (held, _) in ways.items() if held <= SIZE]
        # The first three send the same: the simplest wins. The last two hold about the same: the fewer bytes sent win.
        last = sorted(set(fitting) & {'ZeRO 3', 'tensor'}, key=lambda way: ways[way][1])
        choice = [way for way in fitting if way not in last] + last
        print(f'{billions:8.1f}e9 {examples:6}' + ''.join(f'{held:9.1f} ({sent:4.1f})' for held, sent in ways.values())
              + f'  {choice[0] if choice else "more devices"}')


def main():
    """Reads the flags and runs the lesson."""
    parser = common.parser(__doc__)
    parser.add_argument('--devices', type=int, choices=(2, 4, 8), default=4, metavar='D',
                        help='number of devices: 2, 4 or 8 (default: %(default)s)')
    arguments = common.parse(parser)
    show_layers(common.choose_devices(arguments.device, arguments.devices))
    show_choice(arguments.devices)


if __name__ == '__main__':
    sys.exit(program.run(main))
