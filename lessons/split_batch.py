#!/usr/bin/env python3
"""Lesson 4, splitting a batch: every device gets a share, and gradients are weighted by the sizes of the shares.

    python lessons/split_batch.py --epochs=3

It splits a batch of 4 rows over two devices, then one of 5 rows, which does not divide evenly. It shows that the
gradients of unequal shares have to be weighted by their sizes. Then it trains LeNet on one device and on two. It prints
the time and the accuracy of each epoch, and how far the weights of the two runs are apart. It uses Fashion-MNIST if the
files are in `--data_dir`, where examples/lenet_fashion_mnist.py downloads them, and generated images otherwise.

In the package: the trainer gives every tower a batch of the same size (cifar10/data/pipeline.py); `build` in
examples/lenet_fashion_mnist.py and in examples/parabola.py weight unequal shares.
Exercises: lessons/exercises/split_batch.py.
"""
import os
import sys
import time
import zlib

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cifar10.base import startup  # noqa: E402
from cifar10.programs import program  # noqa: E402

if status := program.run(startup.start_tensorflow):
    sys.exit(status)

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

from cifar10.programs import flags  # noqa: E402
from examples import fashion_mnist  # noqa: E402
from lessons import common  # noqa: E402

IMAGES = 1024  # for training; 512 more for the test
BATCH = 63
RATE = 0.02


def shares_of(size, count):
    """Returns `count` slices that divide `size` examples; their sizes differ by at most one."""
    return [slice(k * size // count, (k + 1) * size // count) for k in range(count)]


def load(batch, devices):
    """Returns the batch's shares as tensors, each on its device."""
    loaded = []
    for share, device in zip(shares_of(int(batch.shape[0]), len(devices)), devices):
        with tf.device('/cpu:0'):
            part = batch[share]
        with tf.device(device):
            loaded.append(tf.identity(part))  # only the share is copied to the device
    return loaded


def show_split(rows, devices):
    """Prints a batch of rows of 5 numbers, and the rows that each device gets."""
    with tf.device('/cpu:0'):
        batch = tf.reshape(tf.range(5 * rows), [rows, 5])
    loaded = load(batch, devices)
    with common.session(devices) as session:
        whole, *values = session.run([batch, *loaded])
    print(f'A batch of {rows} rows:')
    for row in whole:
        print(f'               {common.numbers(row, 0, 4)}')
    for device, value in zip(devices, values):
        print(f'  on {device}, {len(value)} rows:')
        for row in value:
            print(f'               {common.numbers(row, 0, 4)}')


def show_shares(devices):
    """Prints the shares of batches, and the weights of the gradients of unequal shares."""
    show_split(4, devices)
    print()
    show_split(5, devices)
    show_weights(devices)


def show_weights(devices):
    """Prints the gradients of two unequal shares, their plain and weighted means, and the whole batch's gradient."""
    x = np.array([1, 3, 4, 5, 12], np.float32)
    weight = tf.get_variable('weight', initializer=1.0)
    gradients = [tf.gradients(tf.reduce_mean(weight * share), weight)[0] for share in load(tf.constant(x), devices)]
    sizes = [share.stop - share.start for share in shares_of(len(x), len(devices))]
    plain = tf.add_n(gradients) / len(gradients)
    weighted = tf.add_n([size / len(x) * gradient for size, gradient in zip(sizes, gradients)])
    whole = tf.gradients(tf.reduce_mean(weight * x), weight)[0]
    with common.session(devices) as session:
        session.run(weight.initializer)
        values = session.run([*gradients, plain, weighted, whole])
    print('\nThe gradient of mean(weight * x) is the mean of x. With x = 1, 3, 4, 5, 12 on two devices it is:')
    names = [f'{device}, of {size} examples' for device, size in zip(devices, sizes)]
    for name, value in zip([*names, 'plain mean of the two', 'mean weighted by size', 'whole batch'], values):
        print(f'  {name:24}{common.numbers(value)}')


def lenet(images):
    """Builds LeNet: images uint8 [B, 28, 28] -> logits float32 [B, 10]. Its variables are on the CPU."""
    def affine(x, name, shape, product):
        seed = zlib.crc32(name.encode())
        with tf.variable_scope(name), tf.device('/cpu:0'):
            weights = tf.get_variable('weights', shape, initializer=tf.glorot_uniform_initializer(seed))
            biases = tf.get_variable('biases', shape[-1:], initializer=tf.zeros_initializer())
        return product(x, weights) + biases

    def convolution(x, filters):
        return tf.nn.conv2d(x, filters, 1, 'VALID')

    x = tf.cast(images, tf.float32)[..., None] / 255
    x = tf.nn.avg_pool2d(tf.nn.relu(affine(x, 'conv1', [3, 3, 1, 20], convolution)), 2, 2, 'VALID')
    x = tf.nn.avg_pool2d(tf.nn.relu(affine(x, 'conv2', [5, 5, 20, 50], convolution)), 2, 2, 'VALID')
    x = tf.nn.relu(affine(tf.reshape(x, [-1, 800]), 'dense1', [800, 128], tf.matmul))
    return affine(x, 'dense2', [128, 10], tf.matmul)


def train(data, devices, epochs):
    """Trains LeNet with each batch split over the devices, and prints time and accuracy of each epoch.

    Returns:
      {number of updates: the variables}, after the first update and after each epoch; the accuracy of each epoch.
    """
    train_images, train_labels, test_images, test_labels = data
    with tf.Graph().as_default():
        images = tf.placeholder(tf.uint8, [BATCH, 28, 28])
        labels = tf.placeholder(tf.int32, [BATCH])
        tower_grads = []
        for k, (x, y) in enumerate(zip(load(images, devices), load(labels, devices))):
            with tf.device(devices[k]), tf.variable_scope(tf.get_variable_scope(), reuse=k > 0):
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=lenet(x))
                # The sum over the share, divided by the size of the whole batch: the weights
                # are in the losses, so the gradients only have to be added.
                loss = tf.reduce_sum(losses) / BATCH
                tower_grads.append(tf.gradients(loss, tf.trainable_variables()))
        with tf.device('/cpu:0'):
            gradients = [tf.add_n(each) for each in zip(*tower_grads)]
            # Each gradient needs all towers, so no variable changes before every tower has read it.
            step = tf.group([variable.assign_sub(RATE * gradient)
                             for variable, gradient in zip(tf.trainable_variables(), gradients)])
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            predictions = tf.argmax(lenet(tf.constant(test_images)), 1)
        with common.session(devices) as session:
            session.run(tf.global_variables_initializer())
            session.run(predictions)  # the first run of a graph is slow
            variables, accuracies, updates = {}, [], 0
            for epoch in range(1, epochs + 1):
                order = np.random.default_rng(epoch).permutation(len(train_images))
                begin = time.perf_counter()
                for first in range(0, len(order) - BATCH + 1, BATCH):
                    indices = order[first:first + BATCH]
                    session.run(step, {images: train_images[indices], labels: train_labels[indices]})
                    updates += 1
                    if updates == 1:
                        variables[updates] = session.run(tf.trainable_variables())
                seconds = time.perf_counter() - begin
                variables[updates] = session.run(tf.trainable_variables())
                accuracies.append(np.mean(session.run(predictions) == test_labels))
                print(f'  epoch {epoch}: {seconds:5.2f} seconds, test accuracy {accuracies[-1]:.3f}')
    return variables, accuracies


def compare(data, devices, epochs):
    """Trains on the first device, then on all; returns the accuracies of both runs and their differences."""
    runs = []
    for used in (devices[:1], devices):
        sizes = [share.stop - share.start for share in shares_of(BATCH, len(used))]
        print(f"LeNet, {IMAGES} images, batches of {BATCH} on {' '.join(used)}, in shares of "
              f"{' and '.join(map(str, sizes))}:")
        runs.append(train(data, used, epochs))
    variables, accuracies = zip(*runs)
    return accuracies, show_differences(*variables)


def show_differences(one, other):
    """Prints how far the weights of two runs are apart; returns {number of updates: largest difference}."""
    print('The largest difference of a weight between the two runs:')
    found = {}
    for updates, variables in one.items():
        found[updates] = max(np.abs(a - b).max() for a, b in zip(variables, other[updates]))
        print(f'  after {updates:4} update{"s" * (updates > 1):1}   {found[updates]:.0e}')
    return found


def draw(path, accuracies, differences):
    """Draws the accuracies of both runs against epochs, and how far their weights are apart against updates."""
    from matplotlib import pyplot
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3), layout='constrained')
    for label, each, style in zip(('one device', 'two devices'), accuracies, ('o-', 'x--')):
        left.plot(range(1, len(each) + 1), each, style, label=label)
    left.set(xlabel='epoch', xticks=range(1, len(accuracies[0]) + 1), ylabel='test accuracy', ylim=(0, 1.05))
    left.legend(frameon=False)
    right.semilogy(list(differences), list(differences.values()), 'o-', color='black')
    right.set(xlabel='updates', ylabel='largest difference of a weight')
    common.save(figure, path)


def main():
    """Reads the flags and runs the lesson."""
    parser = common.parser(__doc__, plot='accuracies and differences')
    parser.add_argument('--data_dir', default='/tmp/fashion_mnist',
                        help="directory of Fashion-MNIST's four idx.gz files (default: %(default)s)")
    parser.add_argument('--epochs', type=flags.at_least(1), default=3, metavar='EPOCHS',
                        help='passes over the training images (default: %(default)s)')
    arguments = common.parse(parser)
    devices = common.choose_devices(arguments.device, 2)
    show_shares(devices)
    if fashion_mnist.missing(arguments.data_dir):
        print(f'\nImages: generated, a pattern and noise for each class, because {arguments.data_dir} does not have '
              "Fashion-MNIST's files.")
        data = fashion_mnist.generate(IMAGES, IMAGES // 2)
    else:
        data = [array[:IMAGES if k < 2 else IMAGES // 2]
                for k, array in enumerate(fashion_mnist.read(arguments.data_dir))]
        print('\nImages: the first of Fashion-MNIST.')
    accuracies, differences = compare(data, devices, arguments.epochs)
    if arguments.plot:
        draw(arguments.plot, accuracies, differences)


if __name__ == '__main__':
    sys.exit(program.run(main))
