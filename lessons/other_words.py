#!/usr/bin/env python3
"""Lesson 12, the same in other words: one step of four devices in TensorFlow's graphs, in tf.distribute and in Keras.

    python lessons/other_words.py
    python lessons/other_words.py --rate=0.3 --plot=/tmp/other_words.png

One variable w is fitted to eight examples x by gradient descent on mean((w - x)^2), so every number can be computed by
hand. The lesson prints w after each update with one CPU device and with four, which is the same in the three ways. Then
it makes one mistake at a time, and prints its effect. No mistake raises an error. lessons/in_other_words/ has the same
in PyTorch (ddp.py) and in JAX (jax_shard_map.py), without TensorFlow.

In the package: `average_gradients` in cifar10/parallel/towers.py and cifar10/parallel/mirrored.py.
Exercises: lessons/exercises/other_words.py.
"""
import os
import sys
import warnings

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cifar10.base import startup  # noqa: E402
from cifar10.programs import program  # noqa: E402


def start():
    """Imports TensorFlow, and leaves its eager mode on."""
    with startup.tensorflow_started():
        pass


if status := program.run(start):
    sys.exit(status)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

# Keras 3: where tf_keras is installed, tf.keras is Keras 2.
from keras import Input, Sequential, layers, optimizers  # noqa: E402

from cifar10.programs import flags  # noqa: E402
from lessons import common  # noqa: E402

EXAMPLES = np.arange(1, 9, dtype=np.float32)
DEVICES = 4
DEVICE_NAMES = [f'/cpu:{k}' for k in range(DEVICES)]
UPDATES, PLOTTED_UPDATES = 3, 10  # in the first table, in the picture


# The losses of a replica's examples x. tf.distribute adds their gradients over the replicas.
def part_of_mean(w, x, replicas):
    """The replica's part of the loss: its sum divided by the number of examples on all replicas."""
    return tf.reduce_sum(tf.square(w - x)) / len(EXAMPLES)


def mean(w, x, replicas):
    """The mean over the replica's examples, as if nothing were added afterwards."""
    return tf.reduce_mean(tf.square(w - x))


def part_of_mean_of_means(w, x, replicas):
    """The mean over the replica's examples divided by the number of replicas, as Keras' `fit` does."""
    return tf.reduce_mean(tf.square(w - x)) / replicas


def normalised(w, x, replicas):
    """The loss of w * z, where z are the examples normalised with the mean and deviation of the replica's share."""
    z = (x - tf.reduce_mean(x)) / tf.math.reduce_std(x)
    return tf.reduce_mean(tf.square(w * z - x)) / replicas


def graph_towers(devices, rate, updates):
    """Trains with towers in a graph, as lesson 1 does; returns [(loss before, w after)] for each update."""
    v1, losses, gradients = tf.compat.v1, [], []
    with tf.Graph().as_default():
        for k, share in enumerate(np.split(EXAMPLES, len(devices))):
            with tf.device(devices[k]), v1.variable_scope(v1.get_variable_scope(), reuse=k > 0):
                w = v1.get_variable('w', initializer=0.0)
                losses.append(tf.reduce_mean(tf.square(w - share)))
                gradients += v1.gradients(losses[k], w)
        loss = tf.add_n(losses) / len(devices)
        gradient = tf.add_n(gradients) / len(devices)
        with tf.control_dependencies([loss, gradient]):
            update = w.assign_sub(rate * gradient)
        with common.session(devices) as session:
            session.run(v1.global_variables_initializer())
            return [session.run([loss, update]) for _ in range(updates)]


def distributed(strategy, shares, loss_of, rate, updates):
    """Trains with tf.distribute; returns [(loss before, w after)], and how many examples each replica computes.

    Args:
      strategy: a `tf.distribute.Strategy`.
      shares: a float32 array for each replica, its examples.
      loss_of: a function (w, examples, number of replicas) -> loss of a replica.
    """
    with strategy.scope():
        w = tf.Variable(0.0)
        optimizer = optimizers.SGD(rate)
    inputs = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(shares[context.replica_id_in_sync_group]))

    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_of(w, x, strategy.num_replicas_in_sync)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        return loss, tf.size(x)

    train_step, made = tf.function(lambda: strategy.run(step, args=(inputs,))), []
    for _ in range(updates):
        losses, sizes = train_step()
        made.append((strategy.reduce('SUM', losses, axis=None).numpy(), w.numpy()))
    return made, [int(size) for size in strategy.experimental_local_results(sizes)]


def keras(strategy, rate, updates, examples=EXAMPLES):
    """Trains with Keras' `fit`, an epoch of one batch for each update; returns [(loss before, w after)]."""
    with strategy.scope():
        model = Sequential([Input([1]), layers.Dense(1, use_bias=False, kernel_initializer='zeros')])
        model.compile(optimizers.SGD(rate), 'mean_squared_error')
    ones = np.ones_like(examples)[:, None]
    batches = tf.data.Dataset.from_tensor_slices((ones, examples[:, None])).batch(len(EXAMPLES))
    return [(model.fit(batches, verbose=0).history['loss'][0], model.get_weights()[0].item()) for _ in range(updates)]


def by_hand(target, factor, rate, updates):
    """Predicts w after each update, if each takes `factor` times the step 2 * rate * (target - w)."""
    return [target * (1 - (1 - 2 * rate * factor) ** update) for update in range(1, updates + 1)]


def faults(mirrored, rate, updates):
    """Returns (name, w on one device by hand, w with it by hand, what `distributed` returned) for each mistake."""
    equal = np.split(EXAMPLES, DEVICES)
    first_six = EXAMPLES[:6]  # the smaller last batch of an epoch, shared as 2 2 1 1
    uneven = np.array_split(first_six, DEVICES)
    one, middle = tf.distribute.OneDeviceStrategy('/cpu:0'), np.mean(EXAMPLES)
    # The mean of w * z - x squared is smallest where w is the deviation of the examples that z is normalised with.
    return [(name, by_hand(right, 1, rate, updates), by_hand(*wrong, rate, updates), distributed(*way, rate, updates))
            for name, right, wrong, way in (
                ('no mistake', middle, (middle, 1), (mirrored, equal, part_of_mean)),
                ('one device of four', middle, (middle, 1), (one, [EXAMPLES], part_of_mean)),
                ('means are added', middle, (middle, DEVICES), (mirrored, equal, mean)),
                ('same batch for all', middle, (middle, DEVICES), (mirrored, [EXAMPLES] * DEVICES, part_of_mean)),
                ('uneven shares', np.mean(first_six), (np.mean([np.mean(share) for share in uneven]), 1),
                 (mirrored, uneven, part_of_mean_of_means)),
                ('own statistics', np.std(EXAMPLES), (np.std(equal[0]), 1), (mirrored, equal, normalised)))]


def draw(path, made):
    """Draws w against updates, for each mistake."""
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(7, 4), layout='constrained')
    for (name, _, _, (steps, _)), style in zip(made, ('o-', 'x--', 's-', '+--', '^-', 'v-')):
        axes.plot([0] + [w for _, w in steps], style, label=name)
    axes.set(xlabel='updates', ylabel='w', ylim=(-2, 12))
    axes.legend()
    common.save(figure, path)


def line(name, values):
    """Returns a line of a table."""
    return f'  {name:20}{common.numbers(values, 3, 10)}'


def show_ways(mirrored, rate):
    """Trains on one device and on four in each of the three ways, and prints w after each update."""
    print('One device and four take the same steps:\n'
          '                    loss at 0    w after updates 1, 2, 3')
    print(line('by hand', [np.mean(EXAMPLES ** 2), *by_hand(np.mean(EXAMPLES), 1, rate, UPDATES)]))
    for name, train in (
            ('graph towers', lambda count: graph_towers(DEVICE_NAMES[:count], rate, UPDATES)),
            ('tf.distribute', lambda count: distributed(mirrored[count], np.split(EXAMPLES, count), part_of_mean, rate,
                                                        UPDATES)[0]),
            ('Keras', lambda count: keras(mirrored[count], rate, UPDATES))):
        for count in mirrored:
            steps = train(count)
            print(line(f'{name}, {count}', [steps[0][0], *(w for _, w in steps)]))


def show_faults(made):
    """Prints w after one update for each mistake, and how many examples each device computed."""
    print('\nOne mistake at a time, in tf.distribute; w after 1 update:\n'
          '                    loss at 0  one device   by hand  measured    examples of each device')
    for name, right, predicted, (steps, sizes) in made:
        print(f"{line(name, [steps[0][0], right[0], predicted[0], steps[0][1]])}    {' '.join(map(str, sizes))}")


def main():
    """Reads the flags and runs the lesson."""
    parser = flags.Parser(__doc__.splitlines()[0])
    parser.add_argument('--rate', type=flags.positive, default=0.1, help='learning rate (default: %(default)s)')
    parser.add_argument('--plot', metavar='FILE', help='PNG file to draw w against updates into; needs matplotlib')
    arguments = common.parse(parser)
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0],
                                               [tf.config.LogicalDeviceConfiguration()] * len(DEVICE_NAMES))
    warnings.filterwarnings('ignore', '.*shuffle=True')  # Keras warns about datasets
    tf.get_logger().setLevel('ERROR')  # TensorFlow warns because the lesson traces many small functions
    print(f'{len(EXAMPLES)} examples x {common.numbers(EXAMPLES, 0, 2)}, loss mean((w - x)^2), w = 0, '
          f'rate {arguments.rate:g}.\n')
    mirrored = {count: tf.distribute.MirroredStrategy(DEVICE_NAMES[:count]) for count in (1, DEVICES)}
    show_ways(mirrored, arguments.rate)
    made = faults(mirrored[DEVICES], arguments.rate, PLOTTED_UPDATES if arguments.plot else 1)
    show_faults(made)
    if arguments.plot:
        draw(arguments.plot, made)


if __name__ == '__main__':
    sys.exit(program.run(main))
