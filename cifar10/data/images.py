"""The images of a data set in memory, and batches of them."""
import functools

import tensorflow.compat.v1 as tf

from cifar10.data.augment import Augmentation
from cifar10.data.draws import Positions
from cifar10.data.records import Records
from cifar10.data.resize import cut_to_size

# Functions that are given to `Dataset.map` consist of graph operations already, and AutoGraph takes a second to read
# them.
as_graph = tf.autograph.experimental.do_not_convert


class Images:
    """The images of a data set and their labels, in memory: variables on the device of the caller.

    Attributes:
      count: the number of images.
      labels, pixels: uint8 [count] and uint8 [count, stored_size, stored_size, 3], as local variables, which are never
        saved.
      read: the operation that reads the files into memory; to be run once in a session.
    """

    def __init__(self, records: Records):
        self.count = records.count
        self._size = records.size
        side = records.stored_size
        self.labels, self.pixels = (tf.Variable(
            lambda shape=shape: tf.raw_ops.Empty(shape=shape, dtype=tf.uint8), trainable=False,
            collections=[tf.GraphKeys.LOCAL_VARIABLES], name=name) for name, shape in (
                ('labels', [records.count]), ('pixels', [records.count, side, side, 3])))
        # Each file is read into its place, one after the other: a second copy of all of them would take 150 MB.
        # The paths come from a placeholder, or graph optimisation would read the files to see whether they are
        # constant.
        paths = tf.placeholder_with_default(list(records.files), [len(records.files)], name='files')
        first = 0
        read = tf.group(self.labels.initializer, self.pixels.initializer)
        # `unstack` is one operation, an index is four; most of a small run is building operations.
        for path in tf.unstack(paths):
            with tf.control_dependencies([read]):
                rows = tf.reshape(tf.io.decode_raw(tf.io.read_file(path), tf.uint8), [-1, records.record_bytes])
                planes = tf.reshape(rows[:, records.label_bytes:], [-1, 3, side, side])
                # Not tf.transpose: on some CPUs oneDNN cannot transpose bytes, and prints a line about it.
                pixels = tf.stack(tf.unstack(planes, axis=1), -1)
                end = first + tf.unstack(tf.shape(rows))[0]
                examples = tf.range(first, end)
                read = tf.group(tf.scatter_update(self.labels, examples, rows[:, records.label]),
                                tf.scatter_update(self.pixels, examples, pixels))
                first = end
        with tf.control_dependencies([read]):  # rows that no file fills would hold whatever was in memory
            self.read = tf.debugging.assert_equal(
                first, records.count, message='the images have changed since they were checked; start again')

    def batch(self, augmentation: Augmentation, examples: tf.Tensor,
              positions: Positions | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (images float32 [n, height, width, 3], labels int32 [n]).

        Args:
          augmentation: applied to the images.
          examples: int64 [n], their indices in the data set.
          positions: where a training batch lies; None for evaluation.
        """
        n = examples.shape[0] or tf.shape(examples)[0]
        boxes = augmentation.boxes(tf.fill([n, 2], self.pixels.shape[1]), positions)
        images = cut_to_size(tf.gather(self.pixels, examples), boxes, self._size)
        return augmentation(images, positions), tf.cast(tf.gather(self.labels, examples), tf.int32)


@functools.singledispatch
def loaded(records: Records) -> Images:
    """Returns the images of a data set, on the device of the caller."""
    return Images(records)
