"""The images of a data set in memory, and batches of them."""
import functools

import tensorflow.compat.v1 as tf

from cifar10.data.augment import Augmentation
from cifar10.data.draws import Positions
from cifar10.data.records import Records
from cifar10.data.resize import resized_planes, stored_parts

# Functions that are given to `Dataset.map` consist of graph operations already, and AutoGraph takes a second to read
# them.
as_graph = tf.autograph.experimental.do_not_convert


class Images:
    """The images of a data set and their labels, in memory: a variable on the device of the caller.

    Attributes:
      count: the number of images.
      rows: uint8 [count, 1 + 3 * stored_size ** 2]. Each row is a label and the red, green and blue planes of an image.
        The variable is local, so it is never saved.
      read: the operation that reads the files into memory; to be run once in a session.
    """

    def __init__(self, records: Records):
        self.count = records.count
        self._size = records.size
        self._stored_size = records.stored_size
        row_bytes = 1 + 3 * records.stored_size ** 2
        self.rows = tf.Variable(
            lambda: tf.raw_ops.Empty(shape=[records.count, row_bytes], dtype=tf.uint8), trainable=False,
            collections=[tf.GraphKeys.LOCAL_VARIABLES], name='records')
        # Each file is read into its place, one after the other: a second copy of all of them would take 150 MB.
        # The paths come from a placeholder, or graph optimisation would read the files to see whether they are
        # constant.
        paths = tf.placeholder_with_default(list(records.files), [len(records.files)], name='files')
        first = 0
        read = self.rows.initializer
        # `unstack` is one operation, an index is four; most of a small run is building operations.
        for path in tf.unstack(paths):
            with tf.control_dependencies([read]):
                rows = tf.reshape(tf.io.decode_raw(tf.io.read_file(path), tf.uint8), [-1, records.record_bytes])
                if records.label_bytes > 1:
                    rows = tf.concat([rows[:, records.label:records.label + 1], rows[:, records.label_bytes:]], 1)
                end = first + tf.unstack(tf.shape(rows))[0]
                read = tf.scatter_update(self.rows, tf.range(first, end), rows).op
                first = end
        with tf.control_dependencies([read]):  # rows that no file fills would hold whatever was in memory
            self.read = tf.debugging.assert_equal(
                first, records.count, message='the images have changed since they were checked; start again')

    def take(self, examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns some examples, before augmentation.

        Args:
          examples: int64 [n], their indices in the data set.

        Returns:
          (labels int32 [n], planes uint8 [n, 3, size, size] in the size of the run's images).
        """
        labels, planes = self._stored(examples)
        return labels, resized_planes(planes, self._size)

    def batch(self, augmentation: Augmentation, examples: tf.Tensor,
              positions: Positions | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (images float32 [n, height, width, 3], labels int32 [n]).

        Args:
          augmentation: applied to the images.
          examples: int64 [n], their indices in the data set.
          positions: where a training batch lies; None for evaluation.
        """
        labels, planes = self._stored(examples)
        n = examples.shape[0] or tf.shape(examples)[0]
        boxes = augmentation.boxes(tf.fill([n, 2], self._stored_size), positions)
        planes = stored_parts(planes, boxes, self._size)
        return augmentation(planes, positions), labels

    def _stored(self, examples):
        """Returns (labels int32 [n], planes uint8 [n, 3, stored_size, stored_size])."""
        rows = tf.gather(self.rows, examples)
        labels = tf.cast(rows[:, 0], tf.int32)
        return labels, tf.reshape(rows[:, 1:], [-1, 3, self._stored_size, self._stored_size])


@functools.singledispatch
def loaded(records: Records) -> Images:
    """Returns the images of a data set, on the device of the caller."""
    return Images(records)
