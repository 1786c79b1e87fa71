#!/usr/bin/env python3
"""Peers: how many photos a second tf.data's usual ImageNet pipeline and Keras' image_dataset_from_directory make.

Prints a line with images/s. It shares no code with the program that it is compared with. It needs a folder with a
directory of JPEGs for each class.

    python benchmarks/peers/input_pipelines.py --pipeline=tf_data --folder=/tmp/photos/train --size=224
"""
import argparse
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('CUDA_VISIBLE_DEVICES', '-1')

import tensorflow as tf  # noqa: E402

MEAN = (123.675, 116.28, 103.53)
DEVIATION = (58.395, 57.12, 57.375)


def random_resized_crop(contents, size):
    """Returns a random part of a JPEG, resized and mirrored at random, as the ResNet examples of TensorFlow do it."""
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(contents), tf.zeros([1, 0, 4]), min_object_covered=0.1,
        aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0), max_attempts=10,
        use_image_if_no_bounding_boxes=True)
    window = tf.stack([begin[0], begin[1], extent[0], extent[1]])
    image = tf.image.decode_and_crop_jpeg(contents, window, channels=3)
    return tf.image.random_flip_left_right(tf.image.resize(image, [size, size]))


def tf_data(folder, size, batch_size):
    """Returns batches of the files in shuffled order: read, decoded and cropped in parallel, batched, prefetched."""
    classes = sorted(os.listdir(folder))
    files = [(os.path.join(folder, name, file), label) for label, name in enumerate(classes)
             for file in sorted(os.listdir(os.path.join(folder, name)))]
    paths, labels = zip(*files)
    data = tf.data.Dataset.from_tensor_slices((list(paths), list(labels)))
    data = data.shuffle(len(paths), reshuffle_each_iteration=True).repeat()

    def example(path, label):
        image = random_resized_crop(tf.io.read_file(path), size)
        return (image - MEAN) / DEVIATION, label
    data = data.map(example, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def keras(folder, size, batch_size):
    """Returns the batches of Keras, which resizes whole pictures; it has no augmentation."""
    return tf.keras.utils.image_dataset_from_directory(
        folder, label_mode='int', image_size=(size, size), batch_size=batch_size, verbose=False).repeat()


def main():
    """Times the batches after a warm-up, and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--pipeline', choices=('tf_data', 'keras'), default='tf_data')
    parser.add_argument('--folder', required=True)
    parser.add_argument('--size', type=int, default=224)
    parser.add_argument('--batch_size', type=int, default=64)
    parser.add_argument('--batches', type=int, default=30)
    parser.add_argument('--warmup', type=int, default=10)
    options = parser.parse_args()
    make = {'tf_data': tf_data, 'keras': keras}[options.pipeline]
    batches = iter(make(options.folder, options.size, options.batch_size))
    for _ in range(options.warmup):
        next(batches)
    begin = time.perf_counter()
    for _ in range(options.batches):
        next(batches)
    seconds = time.perf_counter() - begin
    print(f'images_per_sec={options.batches * options.batch_size / seconds:.2f}')


if __name__ == '__main__':
    main()
