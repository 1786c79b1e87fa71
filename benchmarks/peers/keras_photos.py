#!/usr/bin/env python3
"""Peer: a plain Keras 3 script that trains on a folder of photos for a limited time, as in Keras' guide.

The time is the processor time of the process, including its start. Prints a line with the accuracy on the test photos.
It shares no code with this repository's program. The folder must have train/ and test/, with a directory of photos for
each class.

    python benchmarks/peers/keras_photos.py --folder=/tmp/photos --seconds=300
"""
import argparse
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')  # faster, even on CPUs where it is not the default

import keras  # noqa: E402  (Keras 3: if tf_keras is installed, tf.keras is Keras 2)

_SIZE = 96  # of an image, in pixels
_BATCH = 32
_WIDTHS = (32, 64, 128, 256)
# For the moving statistics of the evaluation. With Keras' default of 0.99 they lag in a run of a few hundred steps.
_MOMENTUM = 0.9


def photos(folder, part):
    """Returns the batches of a part, shuffled for training."""
    return keras.utils.image_dataset_from_directory(
        os.path.join(folder, part), image_size=(_SIZE, _SIZE), batch_size=_BATCH, shuffle=part == 'train', seed=0,
        crop_to_aspect_ratio=True, verbose=False)


def network(num_classes):
    """Builds groups of two convolutions with batch normalisation and max pooling over 2x2 pixels."""
    layers = keras.layers
    stack = [keras.Input([_SIZE, _SIZE, 3]), layers.RandomFlip('horizontal'), layers.RandomRotation(0.1),
             layers.RandomZoom(0.1), layers.Rescaling(1 / 255),
             layers.Conv2D(24, 2, activation='relu')]
    for width in _WIDTHS:
        stack += [layers.Conv2D(width, 3, padding='same', use_bias=False), layers.MaxPooling2D(2),
                  layers.BatchNormalization(momentum=_MOMENTUM), layers.ReLU(),
                  layers.Conv2D(width, 3, padding='same', use_bias=False),
                  layers.BatchNormalization(momentum=_MOMENTUM), layers.ReLU()]
    return keras.Sequential([*stack, layers.GlobalMaxPooling2D(), layers.Dense(num_classes)])


class Stop(keras.callbacks.Callback):
    """Ends the training after some seconds of processor time."""

    def __init__(self, seconds):
        super().__init__()
        self._seconds = seconds

    def on_train_batch_end(self, batch, logs=None):
        """Stops the training when the time is over."""
        if time.process_time() >= self._seconds:
            self.model.stop_training = True


def main():
    """Trains, evaluates and prints the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--folder', required=True)
    parser.add_argument('--seconds', type=float, required=True)
    parser.add_argument('--seed', type=int, default=0)
    options = parser.parse_args()
    keras.utils.set_random_seed(options.seed)
    train, test = (photos(options.folder, part) for part in ('train', 'test'))
    model = network(len(train.class_names))
    model.compile('adam', keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=['accuracy'])
    model.fit(train.prefetch(2), epochs=10000, verbose=0, callbacks=[Stop(options.seconds)])
    _, accuracy = model.evaluate(test, verbose=0)
    print(f'accuracy={accuracy:.4f}')


if __name__ == '__main__':
    main()
