"""The input pipeline: batches of augmented images, a pure function of (seed, position), in the graph on the CPU.

A position is an index into the endless stream of shuffled epochs. The number of positions that were consumed
is all the state that has to be saved.
"""
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from cifar10.data.augment import Augmentation
from cifar10.data.draws import Positions, shuffled
from cifar10.data.records import RECORD_BYTES, SIZE, Records

# What we hand to `Dataset.map` is made of graph operations already; reading its source takes a second.
_as_graph = tf.autograph.experimental.do_not_convert


def load(records: Records) -> tuple[tf.Variable, tf.Operation]:
    """Makes the variable that holds a data set in memory, on the device of the caller.

    Args:
      records: a `records.Records`.

    Returns:
      (variable uint8 [count, 3073]: a label and the red, green and blue planes of an image in each
      row; the operation that reads the files into it). The variable is local, so it is never saved.
    """
    memory = tf.Variable(lambda: tf.raw_ops.Empty(shape=[records.count, RECORD_BYTES], dtype=tf.uint8), trainable=False,
                         collections=[tf.GraphKeys.LOCAL_VARIABLES], name='records')
    # One file after the other into its place: a second copy of the whole would be 150 MB. Through a
    # placeholder with a default, or graph optimisation would read the files to see whether they are constant.
    paths = tf.placeholder_with_default(list(records.files), [len(records.files)], name='files')
    first, read = 0, memory.initializer
    for i in range(len(records.files)):
        with tf.control_dependencies([read]):
            rows = tf.reshape(tf.io.decode_raw(tf.io.read_file(paths[i]), tf.uint8), [-1, records.record_bytes])
            if records.label_bytes > 1:
                rows = tf.concat([rows[:, records.label:records.label + 1], rows[:, records.label_bytes:]], 1)
            behind = first + tf.shape(rows)[0]
            read, first = tf.scatter_update(memory, tf.range(first, behind), rows).op, behind
    with tf.control_dependencies([read]):  # the rows that no file fills would be whatever was in memory
        complete = tf.debugging.assert_equal(first, records.count, message='the images have changed since the start')
    return memory, complete


def train_batch(records: tf.Variable, augmentation: Augmentation, first_position: tf.Tensor, step_position: tf.Tensor,
                batch_size: int, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the batch of `batch_size` consecutive positions.

    Args:
      records: the variable that `load` makes.
      augmentation: what happens to its images.
      first_position, step_position: int64 scalars, the first position of the batch and of its step.
      batch_size: int.
      seed: int.

    Returns:
      (images float32 [batch_size, height, width, 3]; labels int32 [batch_size]).
    """
    positions, count = first_position + tf.range(batch_size, dtype=tf.int64), int(records.shape[0])
    examples = shuffled(positions, count, seed)
    labels, planes = _split(tf.gather(records, examples))
    return augmentation.train(
        planes, Positions(first_position, step_position, examples, positions // count, count)), labels


def _split(rows):
    """Returns (labels int32 [n], planes uint8 [n, 3, 32, 32]) of records uint8 [n, 3073]."""
    return tf.cast(rows[:, 0], tf.int32), tf.reshape(rows[:, 1:], [-1, 3, SIZE, SIZE])


class Source:
    """The training batches of all towers.

    Args:
      records: a `records.Records`.
      hosts: for each tower the CPU device beside it, which reads the records and makes its batches.
      num_streams: tower k reads stream k mod num_streams. Towers of one stream must read it in their order.
      augmentation: what happens to the images.
      batch_size: int, of one tower.
      seed: int.
    """

    def __init__(self, records: Records, hosts: Sequence[str], num_streams: int, augmentation: Augmentation,
                 batch_size: int, seed: int):
        self._hosts, self._num_streams, self._augmentation = hosts, num_streams, augmentation
        self._batch_size, self._seed = batch_size, seed
        self._loaded = {}
        for host in hosts:
            if host not in self._loaded:
                with tf.device(host):
                    self._loaded[host] = load(records)

    def batches(self, start: tf.Tensor, stop: tf.Tensor, sharded: bool = True,
                devices: Sequence[str] | None = None) -> tuple[Callable[[int], tuple], list]:
        """Builds the towers' input.

        Args:
          start, stop: int64 scalars, the first position and the one before which the stream ends; read when it is
            started.
          sharded: whether every step takes a batch for each tower, the k-th for tower k; otherwise the next batch goes
            to whichever tower comes next.
          devices: the GPUs to whose memory each tower's batch is copied before it is needed; None: none.

        Returns:
          (function k -> what `train_batch` returns, to be called where tower k is built; operations that read the
          records and start the streams, to be run in the session's local initialisation, after a restore).
        """
        if sharded or len(self._hosts) == 1:
            return self._sharded(start, stop, devices)
        return self._shared(start, stop)

    def _sharded(self, start, stop, devices):
        iterators, starts = [], []
        for first, host in enumerate(self._hosts[:self._num_streams]):
            with tf.device(host):
                steps = tf.data.Dataset.range(start, stop, len(self._hosts) * self._batch_size)
                # In each step, the batches of towers first, first + num_streams and so on.
                ahead = tf.range(first, len(self._hosts), self._num_streams, tf.int64) * self._batch_size
                positions = steps.map(_as_graph(
                    lambda step, ahead=ahead: (step + ahead, tf.fill(tf.shape(ahead), step)))).unbatch()
                iterator, begin = self._batches(positions, host, devices[first] if devices else None)
                iterators.append(iterator)
                starts.append(begin)

        def next_batch(k):
            with tf.device(devices[k] if devices else self._hosts[k]):
                return iterators[k % self._num_streams].get_next()
        return next_batch, starts

    def _shared(self, start, stop):
        home, together = self._hosts[0], len(self._loaded) == 1
        with tf.device(home):
            positions = tf.data.Dataset.range(start, stop, self._batch_size)
            if together:  # each batch is a step of its own
                iterator, begin = self._batches(tf.data.Dataset.zip((positions, positions)), home)
            else:  # only positions travel between machines; each makes its own batches
                iterator, begin = _iterator(positions, [read for _, read in self._loaded.values()])

        def next_batch(k):
            with tf.device(home):
                following = iterator.get_next()
            if together:
                return following
            with tf.device(self._hosts[k]):
                return self._batch(self._loaded[self._hosts[k]][0], following, following)
        return next_batch, [begin]

    def _batches(self, positions, host, device=None):
        """Returns (an iterator of the batches at positions; the operation that reads the records and starts it)."""
        memory, read = self._loaded[host]
        batches = positions.map(_as_graph(lambda first, step: self._batch(memory, first, step))).prefetch(2)
        if device is None:
            return _iterator(batches, [read])
        with tf.device(device):
            return _iterator(batches.apply(tf.data.experimental.copy_to_device(device, host)).prefetch(1), [read])

    def _batch(self, memory, first, step):
        return train_batch(memory, self._augmentation, first, step, self._batch_size, self._seed)


def _iterator(dataset, after):
    options = tf.data.Options()
    # There is nothing to tune, and closing a session waits up to a minute for the tuner's thread.
    options.autotune.enabled = False
    dataset = dataset.with_options(options)
    iterator = tf.data.Iterator.from_structure(tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset))
    with tf.control_dependencies(after):
        return iterator, iterator.make_initializer(dataset)


def eval_batches(records: tf.Variable, augmentation: Augmentation, num_examples: int, batch_size: int, share: int = 0,
                 shares: int = 1) -> tuple[tf.data.Iterator, tf.Operation]:
    """The first `num_examples` examples in order, as the augmentation shows them for evaluation.

    Args:
      records: the variable that `load` makes; to be read once, before the first pass.
      augmentation: what happens to its images.
      num_examples: int.
      batch_size: int.
      share, shares: of every so many batches, the one to take.

    Returns:
      (a `tf.data.Iterator` of (images float32 [n, height, width, 3], labels int32 [n]), n being batch_size
      but for the last batch; the operation that starts it at the first example).
    """
    def batch(first):
        # Not records[first:last], which copies the whole variable: one that was scattered into is read so.
        rows = tf.gather(records, tf.range(first, tf.minimum(first + batch_size, num_examples)))
        labels, planes = _split(rows)
        return augmentation.plain(planes), labels

    starts = tf.data.Dataset.range(share * batch_size, num_examples, shares * batch_size)
    return _iterator(starts.map(_as_graph(batch)).prefetch(2), [])
