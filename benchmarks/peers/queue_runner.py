#!/usr/bin/env python3
"""Peer: graph mode with stock operations and a queue-runner input, as in the classic scripts.

Trains the classic network on one tower and prints a line with images/s at the end. It shares no code with this
repository's program. It needs a folder of CIFAR binary files.

    python benchmarks/peers/queue_runner.py --data_dir=/tmp/cifar10_data --steps=300
"""
import argparse
import glob
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')  # faster, even on CPUs where it is not the default

import tensorflow.compat.v1 as tf  # noqa: E402

tf.disable_eager_execution()
tf.logging.set_verbosity(tf.logging.ERROR)


def augmented_inputs(files, batch_size):
    """Builds the classic input: single records, augmented by 16 threads and shuffled in a queue."""
    reader = tf.FixedLengthRecordReader(1 + 3 * 32 * 32)
    _, value = reader.read(tf.train.string_input_producer(files))
    record = tf.decode_raw(value, tf.uint8)
    label = tf.reshape(tf.cast(record[:1], tf.int32), [1])
    image = tf.cast(tf.transpose(tf.reshape(record[1:], [3, 32, 32]), [1, 2, 0]), tf.float32)
    image = tf.random_crop(image, [24, 24, 3])
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, max_delta=63)
    image = tf.image.random_contrast(image, lower=0.2, upper=1.8)
    image = tf.image.per_image_standardization(image)
    image.set_shape([24, 24, 3])
    min_queued = 20000
    images, labels = tf.train.shuffle_batch([image, label], batch_size=batch_size, num_threads=16,
                                            capacity=min_queued + 3 * batch_size, min_after_dequeue=min_queued)
    return images, tf.reshape(labels, [batch_size])


def variable(name, shape, stddev, decay=None):
    """Creates a weight variable with the classic initial value and L2 loss."""
    result = tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(stddev=stddev))
    if decay:
        tf.add_to_collection('losses', tf.multiply(tf.nn.l2_loss(result), decay))
    return result


def inference(images):
    """Builds the classic network."""
    def biases(size, value):
        return tf.get_variable('biases', [size], initializer=tf.constant_initializer(value))
    with tf.variable_scope('conv1'):
        x = tf.nn.conv2d(images, variable('weights', [5, 5, 3, 64], 0.05), [1, 1, 1, 1], 'SAME')
        x = tf.nn.relu(tf.nn.bias_add(x, biases(64, 0.0)))
    x = tf.nn.max_pool(x, [1, 3, 3, 1], [1, 2, 2, 1], 'SAME')
    x = tf.nn.lrn(x, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)
    with tf.variable_scope('conv2'):
        x = tf.nn.conv2d(x, variable('weights', [5, 5, 64, 64], 0.05), [1, 1, 1, 1], 'SAME')
        x = tf.nn.relu(tf.nn.bias_add(x, biases(64, 0.1)))
    x = tf.nn.lrn(x, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)
    x = tf.nn.max_pool(x, [1, 3, 3, 1], [1, 2, 2, 1], 'SAME')
    x = tf.reshape(x, [images.shape[0], -1])
    with tf.variable_scope('local3'):
        x = tf.nn.relu(tf.matmul(x, variable('weights', [2304, 384], 0.04, 0.004)) + biases(384, 0.1))
    with tf.variable_scope('local4'):
        x = tf.nn.relu(tf.matmul(x, variable('weights', [384, 192], 0.04, 0.004)) + biases(192, 0.1))
    with tf.variable_scope('softmax_linear'):
        return tf.matmul(x, variable('weights', [192, 10], 1 / 192.0)) + biases(10, 0.0)


def train_op(images, labels):
    """Builds the loss, the update and the moving averages; returns (loss, operation)."""
    step = tf.train.get_or_create_global_step()
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=inference(images))
    tf.add_to_collection('losses', tf.reduce_mean(losses))
    loss = tf.add_n(tf.get_collection('losses'))
    rate = tf.train.exponential_decay(0.1, step, 136718, 0.1, staircase=True)
    update = tf.train.GradientDescentOptimizer(rate).minimize(loss, step)
    averages = tf.train.ExponentialMovingAverage(0.9999, step)
    with tf.control_dependencies([update]):
        return loss, averages.apply(tf.trainable_variables())


def main():
    """Trains, and prints the speed of the steps after the warm-up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--data_dir', required=True)
    parser.add_argument('--steps', type=int, default=300, help='timed steps, after as many warm-up steps')
    parser.add_argument('--batch_size', type=int, default=128)
    parser.add_argument('--device', choices=('cpu', 'gpu'), default='cpu')
    flags = parser.parse_args()
    files = sorted(glob.glob(os.path.join(flags.data_dir, '*', 'data_batch_*.bin')))
    with tf.device('/cpu:0'):
        images, labels = augmented_inputs(files, flags.batch_size)
    with tf.device(f'/{flags.device}:0'):
        loss, update = train_op(images, labels)
    with tf.train.MonitoredTrainingSession(config=tf.ConfigProto(allow_soft_placement=True)) as session:
        for step in range(2 * flags.steps):
            if step == flags.steps:
                begin = time.perf_counter()
            value, _ = session.run([loss, update])
        seconds = time.perf_counter() - begin
    print(f'images_per_sec={flags.steps * flags.batch_size / seconds:.1f} loss={value:.3f}')


if __name__ == '__main__':
    main()
