#!/usr/bin/env python3
"""Peer: Keras 3 with compile and fit, MirroredStrategy on one device, and a batched tf.data input.

Trains the classic network and prints a line with images/s at the end. It shares no code with this repository's program.
It needs a folder of CIFAR binary files.

    python benchmarks/peers/keras_mirrored.py --data_dir=/tmp/cifar10_data --steps=300
"""
import argparse
import glob
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')  # faster, even on CPUs where it is not the default

import keras  # noqa: E402  (Keras 3: if tf_keras is installed, tf.keras is Keras 2)
import tensorflow as tf  # noqa: E402


def augmented(values):
    """Returns the individually augmented images, and the labels, of a batch of records."""
    records = tf.io.decode_raw(values, tf.uint8)
    n = tf.shape(records)[0]
    across = tf.range(24)
    across = tf.where(tf.random.uniform([n, 1]) < 0.5, across, across[::-1]) + tf.random.uniform([n, 1], 0, 9, tf.int32)
    down = tf.range(24) + tf.random.uniform([n, 1], 0, 9, tf.int32)
    pixels = tf.transpose(tf.reshape(records[:, 1:], [-1, 3, 32 * 32]), [0, 2, 1])
    images = tf.gather(pixels, 32 * down[:, :, None] + across[:, None, :], batch_dims=1)
    images = tf.cast(images, tf.float32) + tf.random.uniform([n, 1, 1, 1], -63, 63)
    mean = tf.reduce_mean(images, [1, 2], keepdims=True)
    images = (images - mean) * tf.random.uniform([n, 1, 1, 1], 0.2, 1.8) + mean
    return tf.image.per_image_standardization(images), tf.cast(records[:, 0], tf.int32)


def batches(files, batch_size):
    """Builds the input: records are kept in memory, shuffled in every pass and augmented in batches."""
    records = tf.data.FixedLengthRecordDataset(files, 1 + 3 * 32 * 32).cache()
    data = records.shuffle(20000).repeat().batch(batch_size, drop_remainder=True)
    return data.map(augmented, tf.data.AUTOTUNE, deterministic=False).prefetch(tf.data.AUTOTUNE)


class Lrn(keras.layers.Layer):
    """Local response normalisation; Keras has no layer for it."""

    def call(self, inputs):
        """Normalises each input by its neighbours in nine channels."""
        return tf.nn.local_response_normalization(inputs, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)


def network():
    """Builds the classic network with its initial values and L2 losses."""
    layers = keras.layers

    def start(stddev, bias):
        return {'kernel_initializer': keras.initializers.TruncatedNormal(stddev=stddev),
                'bias_initializer': keras.initializers.Constant(bias)}

    def decay():
        return keras.regularizers.L2(0.004 / 2)  # Keras does not halve the sum of squares
    return keras.Sequential([
        keras.Input([24, 24, 3]),
        layers.Conv2D(64, 5, padding='same', activation='relu', **start(0.05, 0.0)),
        layers.MaxPooling2D(3, 2, padding='same'), Lrn(),
        layers.Conv2D(64, 5, padding='same', activation='relu', **start(0.05, 0.1)),
        Lrn(), layers.MaxPooling2D(3, 2, padding='same'),
        layers.Flatten(),
        layers.Dense(384, activation='relu', kernel_regularizer=decay(), **start(0.04, 0.1)),
        layers.Dense(192, activation='relu', kernel_regularizer=decay(), **start(0.04, 0.1)),
        layers.Dense(10, **start(1 / 192.0, 0.0))])


class Clock(keras.callbacks.Callback):
    """Times the steps after the warm-up."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_batch_begin(self, batch, logs=None):
        """Starts the clock at the first step after the warm-up."""
        if batch == self.steps:
            self.begin = time.perf_counter()
        if batch == 2 * self.steps - 1:
            self.model.reset_metrics()  # Keras reports an epoch's mean loss; the other peers print the last loss

    def on_train_batch_end(self, batch, logs=None):
        """Stops the clock at the last step; the loss in `logs` exists only when the devices are done."""
        if batch == 2 * self.steps - 1:
            self.seconds = time.perf_counter() - self.begin
            self.loss = logs['loss']


def main():
    """Trains, and prints the speed of the steps after the warm-up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--data_dir', required=True)
    parser.add_argument('--steps', type=int, default=300, help='timed steps, after as many warm-up steps')
    parser.add_argument('--batch_size', type=int, default=128)
    parser.add_argument('--device', choices=('cpu', 'gpu'), default='cpu')
    flags = parser.parse_args()
    files = sorted(glob.glob(os.path.join(flags.data_dir, '*', 'data_batch_*.bin')))
    strategy = tf.distribute.MirroredStrategy([f'/{flags.device}:0'])
    with strategy.scope():
        model = network()
        rate = keras.optimizers.schedules.ExponentialDecay(0.1, 136718, 0.1, staircase=True)
        model.compile(keras.optimizers.SGD(rate, use_ema=True, ema_momentum=0.9999),
                      keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    clock = Clock(flags.steps)
    model.fit(batches(files, flags.batch_size), steps_per_epoch=2 * flags.steps, callbacks=[clock], shuffle=False,
              verbose=0)
    print(f'images_per_sec={flags.steps * flags.batch_size / clock.seconds:.1f} loss={clock.loss:.3f}')


if __name__ == '__main__':
    main()
