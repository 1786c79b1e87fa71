#!/usr/bin/env python3
"""Lesson 8, sharding: each device keeps a part of the optimizer's state, of the gradients, and of the weights.

    python lessons/sharding.py --devices=4

Four dense layers are trained with Adam on D devices, each with its share of the batch: first with everything on every
device, then with the moments, the gradients and the weights cut into D shards (ZeRO 1, 2 and 3). The weights come out
the same. The lesson counts the bytes that a device holds and sends, in the graphs. lessons/tensor_parallel.py cuts the
layers themselves.

In the package: every device keeps everything, cifar10/parallel/replicated.py. Exercises: lessons/exercises/sharding.py.
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
from lessons.ring import all_gather, bytes_sent, most_at_once, on_each, reduce_scatter  # noqa: E402

LAYERS, WIDTH, EXAMPLES, UPDATES, RATE = 4, 8, 16, 3, 0.01
STAGES = ('replicated', 'ZeRO 1', 'ZeRO 2', 'ZeRO 3')
KEPT = {'weights': 3, 'gradient': 2, 'moment1': 1, 'moment2': 1}  # name -> the first stage that keeps a shard only


def whole_numbers(seed, *shape):
    """Returns an array of -1, 0 and 1, float32, so that sums of products are exact."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float32)


def variables(stage, devices):
    """Creates the variables of the devices; returns {(name, layer): D variables, [64] or a shard, [64 / D]}."""
    made = {}
    for layer in range(LAYERS):
        for name, first_shard in KEPT.items():
            start = whole_numbers(layer, WIDTH * WIDTH) if name == 'weights' else np.zeros(WIDTH * WIDTH, np.float32)
            starts = np.split(start, len(devices)) if stage >= first_shard else [start] * len(devices)
            made[name, layer] = on_each(devices, lambda d, value: tf.get_variable(
                f'{name}_{layer}_{d}', initializer=value), range(len(devices)), starts)  # noqa: B023
    return made


def adam(gradient, moment1, moment2):
    """Updates the moments; returns the decrease of the weights, without Adam's correction of the first updates."""
    first = moment1.assign(0.9 * moment1 + 0.1 * gradient)
    second = moment2.assign(0.999 * moment2 + 0.001 * tf.square(gradient))
    return RATE * first / (tf.sqrt(second) + 1e-8)


def build(stage, devices, held, prefetch=False):
    """Builds one update of all layers; stage 0 keeps everything on every device, 1 to 3 are ZeRO's stages.

    Args:
      held: the variables, as `variables` returns them.
      prefetch: gather weights as early as possible, not only when their layer needs them.

    Returns:
      The operation, and for `most_at_once` the pairs of the weights that device 0 gathers, and of its gradients.
    """
    gathered, unreduced, kept = [], [], {LAYERS: []}

    def read(name, layer):
        return on_each(devices, lambda variable: variable.read_value(), held[name, layer])

    def matrices(layer, earlier):
        with tf.control_dependencies([] if prefetch else earlier):
            flat = all_gather(read('weights', layer), devices) if stage == 3 else read('weights', layer)
            return on_each(devices, lambda each: tf.reshape(each, [WIDTH, WIDTH]), flat)

    # Forward. Each device has its share of the examples. Each example counts 1/16 on any device, so the sum over the
    # devices is the mean over the batch.
    x, y = (np.array_split(whole_numbers(seed, EXAMPLES, WIDTH), len(devices)) for seed in (8, 9))
    outputs = [on_each(devices, tf.constant, x)]
    for layer in range(LAYERS):
        weights = matrices(layer, outputs[-1])
        products = on_each(devices, tf.matmul, outputs[-1], weights)
        outputs.append(on_each(devices, tf.nn.relu, products))
        gathered.append((weights[0], products[0]))
    # Backward. The weights are gathered once more, as they were freed on the way forward.
    back = on_each(devices, lambda output, target: (output - target) / EXAMPLES, outputs[-1], y)
    for layer in reversed(range(LAYERS)):
        weights = matrices(layer, [*back, *kept[layer + 1]])
        with tf.control_dependencies(kept[layer + 1]):
            back = on_each(devices, lambda each, output: each * tf.sign(output), back, outputs[layer + 1])
            gradients = on_each(devices, lambda output, each: tf.reshape(
                tf.matmul(output, each, transpose_a=True), [-1]), outputs[layer], back)
        back = on_each(devices, lambda each, matrix: tf.matmul(each, matrix, transpose_b=True), back, weights)
        # At once, or, in the other stages, after the backward pass.
        shards = reduce_scatter(gradients, devices) if stage >= 2 else gradients
        kept[layer] = on_each(devices, lambda variable, value: variable.assign(value).op,
                              held['gradient', layer], shards)
        gathered.append((weights[0], back[0]))
        unreduced.append((gradients[0], kept[layer][0]))
    # Update.
    updates = []
    for layer in range(LAYERS):
        with tf.control_dependencies([*back, *kept[layer]]):  # no weights change before the backward pass has read them
            gradients = read('gradient', layer)
            gradients = reduce_scatter(gradients, devices) if stage < 2 else gradients
            gradients = all_gather(gradients, devices) if stage < 1 else gradients
            steps = on_each(devices, adam, gradients, held['moment1', layer], held['moment2', layer])
            if stage in (1, 2):  # a device changes its own chunk of the weights, and receives the rest
                own = on_each(devices, lambda each, d: tf.split(each, len(devices))[d],
                              read('weights', layer), range(len(devices)))
                new = all_gather(on_each(devices, tf.subtract, own, steps), devices)
                updates += on_each(devices, lambda variable, value: variable.assign(value), held['weights', layer], new)
            else:
                updates += on_each(devices, lambda variable, by: variable.assign_sub(by), held['weights', layer], steps)
    return tf.group(updates), gathered, unreduced


def train(stage, devices, prefetch=False):
    """Trains in a graph of its own.

    Returns:
      The weights after each update; the bytes that device 0 holds, {name: bytes}; the bytes that it sends in an update;
      and the largest numbers of layers with gathered weights, and with unreduced gradients, at the same time.
    """
    with tf.Graph().as_default(), common.session(devices) as session:
        held = variables(stage, devices)
        update, *pairs = build(stage, devices, held, prefetch)
        session.run(tf.global_variables_initializer())
        found = []
        for _ in range(UPDATES):
            session.run(update)
            weights = session.run([held['weights', layer] for layer in range(LAYERS)])
            found.append(np.ravel([np.concatenate(each) if stage == 3 else each[0] for each in weights]))
        bytes_held = collections.Counter()
        for variable in tf.global_variables():
            if variable.device.endswith(':0'):
                bytes_held[variable.op.name.split('_')[0]] += 4 * variable.shape.num_elements()
        return found, bytes_held, bytes_sent(update), [most_at_once(each) for each in pairs]


def show_stages(devices, prefetch):
    """Trains in each stage and on one device, and prints the tables; returns {stage: bytes held by name}."""
    D, n = len(devices), 4 * LAYERS * WIDTH * WIDTH
    runs = {name: train(stage, devices, prefetch) for stage, name in enumerate(STAGES)}
    print(f'{LAYERS} layers of {WIDTH} x {WIDTH} weights, n = {n} bytes, on D = {D} devices. Bytes that device 0 '
          'holds:\n              weights  gradient  moments  together   predicted')
    for (name, (_, held, *_)), formula in zip(runs.items(), (4, 2 + 2 / D, 1 + 3 / D, 4 / D)):
        print(f'{name:12}{held["weights"]:9}{held["gradient"]:10}{held["moment1"] + held["moment2"]:9}'
              f'{sum(held.values()):10}   {formula:4.2f} n = {formula * n:.0f}')
    print('\nBytes sent in an update. The last two columns count layers at the same time: layers with gathered\n'
          'weights, and layers with a whole gradient that is not stored yet.\n'
          '              sent              predicted                 weights  gradients')
    for (name, (_, _, sent, most)), times in zip(runs.items(), (2, 2, 2, 3)):
        print(f'{name:12}{sent:6} B = {sent / n:.2f} n   {times} n (D - 1) / D = {times * (D - 1) / D:.2f} n'
              f'{most[0] if name == STAGES[3] else 0:9}{most[1]:11}')
    print('\nThe largest difference of a weight after 1, 2 and 3 updates\n'
          '              from replicated            from one device with all examples')
    alone, replicated = train(0, devices[:1])[0], runs[STAGES[0]][0]
    for name, (weights, *_) in runs.items():
        apart = [np.abs(np.subtract(weights, other)).max(1) for other in (replicated, alone)]
        print(f'{name:12}' + '   '.join(''.join(f'{each:8.1g}' for each in row) for row in apart))
    return {name: held for name, (_, held, *_) in runs.items()}


def draw(path, table):
    """Draws the bytes that device 0 holds in each stage, a stack of bars, into a PNG file."""
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(7, 3), layout='constrained')
    left = np.zeros(len(table))
    for name, label in zip(KEPT, ('weights', 'gradient', 'first moment', 'second moment')):
        widths = np.array([held[name] for held in table.values()])
        axes.barh(list(table), widths, left=left, label=label)
        left += widths
    axes.invert_yaxis()
    axes.set_xlabel('bytes that device 0 holds')
    axes.legend(loc='lower right', fontsize='small')
    common.save(figure, path)


def main():
    """Reads the flags and runs the lesson."""
    parser = common.parser(__doc__, plot='the bytes that a device holds')
    parser.add_argument('--devices', type=int, choices=(2, 4, 8), default=4, metavar='D',
                        help='number of devices: 2, 4 or 8 (default: %(default)s)')
    parser.add_argument('--prefetch', action='store_true',
                        help='gather the weights of all layers as early as possible, not one after the other')
    arguments = common.parse(parser)
    table = show_stages(common.choose_devices(arguments.device, arguments.devices), arguments.prefetch)
    print('\n7.5e9 parameters on 64 devices in mixed precision: 2 bytes for a weight, 2 for its gradient, 12 for Adam')
    for name, a_parameter in zip(STAGES, (16, 4 + 12 / 64, 2 + 14 / 64, 16 / 64)):
        print(f'{name:12}{7.5 * a_parameter:6.1f} GB')
    if arguments.plot:
        draw(arguments.plot, table)


if __name__ == '__main__':
    sys.exit(program.run(main))
