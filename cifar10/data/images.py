"""Images with classes as the input of a training: in memory, as batches, and as a `Source`.

A batch is a pure function of (seed, position), where a position is an index into the endless stream of shuffled epochs.
"""
import functools
import os
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import cpu_session
from cifar10.data.augment import Augmentation
from cifar10.data.datasets import ImageFiles
from cifar10.data.draws import Positions, shuffled
from cifar10.data.pipeline import AHEAD, Source, as_graph, started
from cifar10.data.resize import cut_to_size

_SAMPLE = 2000  # maximum number of training images in a sample
_SAMPLE_PIXELS = _SAMPLE * 64 ** 2  # maximum number of pixels in a sample, 100 MB in floats


class Images:
    """The images of a data set and their labels, in memory: variables on the device of the caller.

    Attributes:
      count: the number of images.
      labels, pixels: uint8 [count] and uint8 [count, stored_size, stored_size, 3], as local variables, which are never
        saved.
      read: the operation that reads the files into memory; run it once in a session.
    """

    def __init__(self, files: ImageFiles):
        self.count = files.count
        self._size = files.size
        side = files.stored_size
        self.labels, self.pixels = (tf.Variable(
            lambda shape=shape: tf.raw_ops.Empty(shape=shape, dtype=tf.uint8), trainable=False,
            collections=[tf.GraphKeys.LOCAL_VARIABLES], name=name) for name, shape in (
                ('labels', [files.count]), ('pixels', [files.count, side, side, 3])))
        # Reads one file at a time into the variables: a second copy of all files would take 150 MB.
        paths = unfolded(list(files.files))
        first = 0
        read = tf.group(self.labels.initializer, self.pixels.initializer)
        # `split` and `unstack` are one operation, an index is four; a small run spends most time building operations.
        record, parts = tf.constant([-1, files.record_bytes]), tf.constant([files.label_bytes, 3 * side ** 2])
        shape, axis = tf.constant([-1, 3, side, side]), tf.constant(1)
        for path in tf.unstack(paths):
            with tf.control_dependencies([read]):
                rows = tf.reshape(tf.io.decode_raw(tf.io.read_file(path), tf.uint8), record)
                labels, planes = tf.split(rows, parts, axis)
                # Not tf.transpose: on some CPUs oneDNN cannot transpose bytes, and prints a line about it.
                pixels = tf.stack(tf.unstack(tf.reshape(planes, shape), axis=1), -1)
                end = first + tf.unstack(tf.shape(rows))[0]
                examples = tf.range(first, end)
                read = tf.group(tf.scatter_update(self.labels, examples, tf.unstack(labels, axis=1)[-1]),
                                tf.scatter_update(self.pixels, examples, pixels))
                first = end
        with tf.control_dependencies([read]):  # missing rows would be uninitialised memory
            self.read = tf.debugging.assert_equal(
                first, files.count, message='the images have changed since they were checked; start again')

    def batch(self, augmentation: Augmentation, examples: tf.Tensor,
              positions: Positions | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (images float32 [n, height, width, 3], labels int32 [n]).

        Args:
          augmentation: the Augmentation to apply.
          examples: int64 [n], indices in the data set.
          positions: the positions of a training batch; None for evaluation.
        """
        n = examples.shape[0] or tf.shape(examples)[0]
        boxes = augmentation.boxes(tf.fill([n, 2], self.pixels.shape[1]), positions)
        images = cut_to_size(tf.gather(self.pixels, examples), boxes, self._size)
        return augmentation(images, positions), tf.cast(tf.gather(self.labels, examples), tf.int32)


def unfolded(value: Any) -> tf.Tensor:
    """Returns a tensor that TensorFlow does not treat as a constant.

    TensorFlow folds constants and defaults of placeholders when it prepares the graph. With constant paths, it would
    read the files then, and keep their contents in the graph.
    """
    variable = tf.Variable(value, trainable=False, collections=[], name='unfolded')
    with tf.control_dependencies([variable.initializer]):
        return variable.read_value()


@functools.singledispatch
def loaded(files: ImageFiles) -> Images:
    """Returns the images of a data set, on the current device."""
    return Images(files)


class ImageSource(Source):
    """The training images of a data set, shuffled in each epoch, and augmented.

    A batch is (images float32 [batch_size, height, width, 3], labels int32 [batch_size]), for `Augmentation.in_tower`.

    Args:
      images: verified ImageFiles.
      augmentation: the Augmentation to apply.
      batch_size: number of examples of one tower in one step.
      seed: seed of the order of the examples.
    """

    def __init__(self, images: ImageFiles, augmentation: Augmentation, batch_size: int, seed: int):
        self.images = images
        self.batch_size = batch_size
        self.count: int = images.count
        self.classes, self.class_counts = images.classes, images.class_counts
        self.facts = dict(classes=images.classes, examples=images.count, images_sha256=images.digest,
                          images_folder=os.path.basename(images.folder))
        self.is_made = os.path.exists(images.files[0])
        self.kept = images.kept if self.is_made else ()
        self._augmentation = augmentation
        self._seed = seed

    def load(self):
        images = loaded(self.images)
        return images, images.read

    def stream(self, data, start, stop, towers, num_towers, at_a_time):
        steps = tf.data.Dataset.range(start, stop, num_towers * self.batch_size)
        ahead = tf.constant([*towers], tf.int64) * self.batch_size
        positions = steps.map(as_graph(lambda step: (step + ahead, tf.fill(tf.shape(ahead), step)))).unbatch()
        return positions.map(as_graph(lambda first, step: self.batch(data, first, step)), at_a_time)

    def batch(self, data, first, step):
        positions = first + tf.range(self.batch_size, dtype=tf.int64)
        examples = shuffled(positions, self.count, self._seed)
        epochs = positions // self.count
        return data.batch(self._augmentation, examples, Positions(first, step, examples, epochs, self.count))

    def sample(self):
        """Returns training images, preprocessed as in evaluation, float32 [n, height, width, 3]."""
        size = self.images.size
        with cpu_session() as session:
            images = tf.constant(self.images.images(min(_SAMPLE, _SAMPLE_PIXELS // size ** 2)))
            return session.run(self._augmentation(cut_to_size(images, None, size)))

    def __str__(self):
        fed = ', then '.join(f'{size}x{size}' for size in self._augmentation.image_sizes())
        seen = self._augmentation.seen
        return f"{self.images}, fed as {fed}{f', {seen:.0%} of each image' if seen < 1 else ''}"


def eval_batches(images: Images, augmentation: Augmentation, num_examples: int, batch_size: int,
                 share: int = 0, shares: int = 1) -> tuple[tf.data.Iterator, tf.Operation]:
    """Returns the batches of the first `num_examples` examples, in order and without random changes.

    Args:
      images: from `loaded`; run `read` before the first pass.
      augmentation: the Augmentation to apply.
      share, shares: selects batch number `share` of every `shares` batches, for evaluation on several devices.

    Returns:
      (a `tf.data.Iterator` of (images float32 [n, height, width, 3], labels int32 [n]), the operation that
      starts it at the first example). n is `batch_size`, except in the last batch.
    """
    def batch(first):
        # Not a slice: after a scatter update, TensorFlow copies the whole variable for each slice.
        return images.batch(augmentation, tf.range(first, tf.minimum(first + batch_size, num_examples)), None)

    starts = tf.data.Dataset.range(share * batch_size, num_examples, shares * batch_size)
    return started(starts.map(as_graph(batch)).prefetch(AHEAD), [])
