#!/usr/bin/env python3
"""Trains LeNet on Fashion-MNIST: each device has a copy of the parameters and a share of each batch.

    python examples/lenet_fashion_mnist.py --towers=2

Every device computes the gradients of its share of the batch. An all-reduce gives every device the weighted mean, which
is the gradient of the whole batch (update mode `replicated`), and all copies take the same step.
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

from cifar10.base.errors import UsageError  # noqa: E402
from cifar10.base.registry import UPDATE_MODES  # noqa: E402
from cifar10.data.download import DownloadError  # noqa: E402
from cifar10.parallel import gpus  # noqa: E402
from cifar10.parallel.devices import choose as choose_devices  # noqa: E402
from cifar10.parallel.session_config import session_config  # noqa: E402
from cifar10.programs import flags  # noqa: E402
from cifar10.settings.training import TOWER_DEVICES  # noqa: E402
from examples import fashion_mnist  # noqa: E402


def read(data_dir):
    """Returns (training images, training labels, test images, test labels), uint8.

    The arrays are Fashion-MNIST, downloaded if `data_dir` does not have it, or generated if the download fails.
    """
    try:
        return fashion_mnist.read(data_dir)
    except DownloadError as error:
        print(f'images     generated, because {error}; put the four files of Fashion-MNIST into {data_dir} to use them')
        return fashion_mnist.generate_varied()


def lenet(images):
    """Builds LeNet: images uint8 [n, 28, 28] -> logits float32 [n, 10]."""
    def variables(name, shape):
        def initial_value(shape, dtype, partition_info=None):
            return tf.random.stateless_normal(shape, [0, zlib.crc32(name.encode())], stddev=0.01, dtype=dtype)
        with tf.variable_scope(name):
            return (tf.get_variable('weights', shape, initializer=initial_value),
                    tf.get_variable('biases', shape[-1:], initializer=tf.zeros_initializer()))

    x = tf.cast(images, tf.float32)[..., None] / 255
    for name, size, channels in (('conv1', 3, 20), ('conv2', 5, 50)):
        weights, biases = variables(name, [size, size, x.shape[-1], channels])
        x = tf.nn.avg_pool2d(tf.nn.relu(tf.nn.conv2d(x, weights, 1, 'VALID') + biases), 2, 2, 'VALID')
    x = tf.reshape(x, [-1, x.shape[1] * x.shape[2] * x.shape[3]])
    weights, biases = variables('dense1', [x.shape[-1], 128])
    x = tf.nn.relu(x @ weights + biases)
    weights, biases = variables('dense2', [128, 10])
    return x @ weights + biases


def build(images, labels, devices, batch_size, learning_rate):
    """Builds the towers of a batch; returns the operation that takes a step.

    Args:
      images: uint8 [batch_size, 28, 28].
      labels: int32 [batch_size].
      devices: a `parallel.devices.Devices`.
      batch_size: number of examples of all towers in one step.
      learning_rate: learning rate of gradient descent.
    """
    count = devices.num_towers
    shares = [slice(k * batch_size // count, (k + 1) * batch_size // count) for k in range(count)]

    def tower_fn(k, scope):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=labels[shares[k]], logits=lenet(images[shares[k]]))
        # With this weight, the mean over the towers is the mean over the batch, even if the shares differ.
        return dict(total_loss=tf.reduce_sum(losses) * (count / batch_size))

    step = UPDATE_MODES.load('replicated')(devices).build(
        tower_fn, lambda: tf.train.GradientDescentOptimizer(learning_rate), tf.train.create_global_step())
    return step.train_ops[0]


def train(data, devices, epochs, batch_size, learning_rate, report):
    """Trains, and calls `report(epoch, seconds of training, test accuracy)` after each epoch.

    Args:
      data: the arrays from `read`.
      devices, batch_size, learning_rate: see `build`.
    """
    train_images, train_labels, test_images, test_labels = data
    examples = len(train_images)
    with tf.Graph().as_default():
        images = tf.placeholder(tf.uint8, [None, 28, 28])
        labels = tf.placeholder(tf.int32, [None])
        train_step = build(images, labels, devices, batch_size, learning_rate)
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            predictions = tf.argmax(lenet(images), 1, output_type=tf.int32)
        correct = tf.reduce_sum(tf.cast(tf.equal(predictions, labels), tf.int32))
        steps_per_epoch = examples // batch_size
        with tf.Session(config=session_config(devices)) as session:
            session.run(tf.global_variables_initializer())
            session.run(tf.local_variables_initializer())  # the other devices' copies
            for epoch in range(1, epochs + 1):
                order = np.random.default_rng(epoch).permutation(examples)
                begin = time.perf_counter()
                for batch in range(steps_per_epoch):
                    indices = order[batch * batch_size:(batch + 1) * batch_size]
                    session.run(train_step, {images: train_images[indices], labels: train_labels[indices]})
                seconds = time.perf_counter() - begin
                num_correct = 0
                for first in range(0, len(test_images), 1000):
                    part = slice(first, first + 1000)
                    num_correct += session.run(correct, {images: test_images[part], labels: test_labels[part]})
                report(epoch, seconds, num_correct / len(test_images))


def main():
    """Reads the flags and trains."""
    parser = flags.Parser(__doc__.splitlines()[0])
    parser.add_argument('--data_dir', default='/tmp/fashion_mnist',
                        help='directory of the four idx.gz files, created if necessary (default: %(default)s)')
    parser.add_argument('--towers', type=flags.at_least(1), default=1, metavar='K',
                        help='number of GPUs, or of CPU devices if there are no GPUs (default: %(default)s)')
    parser.add_argument('--tower_device', choices=TOWER_DEVICES, default='auto',
                        help='auto: GPUs, or the CPU if there are no GPUs (default: %(default)s)')
    parser.add_argument('--batch_size', type=flags.at_least(1), default=256, metavar='B',
                        help='examples of all towers in one step (default: %(default)s)')
    parser.add_argument('--learning_rate', type=flags.positive, default=0.2, metavar='RATE',
                        help='learning rate of gradient descent (default: %(default)s)')
    parser.add_argument('--epochs', type=flags.at_least(1), default=4, metavar='EPOCHS',
                        help='passes over the training images (default: %(default)s)')
    arguments = parser.parse_args()
    towers = arguments.towers
    batch_size = arguments.batch_size
    if towers > batch_size:
        raise UsageError(f'--towers={towers}, but --batch_size={batch_size} can be split over at most '
                         f'{batch_size} towers; use fewer towers or a larger batch')
    devices = choose_devices(towers, arguments.tower_device, count_flag='--towers')
    gpus.claim(devices.num_gpus)
    data = read(arguments.data_dir)
    examples = len(data[0])
    if batch_size > examples:
        raise UsageError(f'--batch_size={batch_size}, but there are {examples} images; use a smaller batch')
    print(f'towers     {devices.num_towers} on {devices}')
    if examples % batch_size:
        print(f'dropping the last, smaller batch of each epoch, {examples % batch_size} images')
    train(data, devices, arguments.epochs, batch_size, arguments.learning_rate,
          lambda epoch, seconds, accuracy: print(f'epoch {epoch}, time {seconds:.1f} sec, test acc {accuracy:.2f}'))


if __name__ == '__main__':
    sys.exit(program.run(main))
