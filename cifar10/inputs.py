"""Positions -> batches of distorted images: a pure function of (seed, position), run in the graph on the CPU.

A position is an index into the endless stream of shuffled epochs. No state needs saving but how
many positions were consumed. Knows records; nothing of networks, towers or steps.
"""
import os

import tensorflow.compat.v1 as tf

from cifar10.records import RECORD_BYTES, SIZE

IMAGE_SIZE = 24  # of the crops that the network sees

_PHILOX = 1  # tf.random.Algorithm.PHILOX, as the raw operation wants it
# The operation's default of 4 rounds leaves consecutive epochs correlated (0.6 to 0.75).
_SHUFFLE_ROUNDS = 8

# What we hand to `Dataset.map` is made of graph operations already; reading its source takes a second.
_as_graph = tf.autograph.experimental.do_not_convert


def load(records):
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
    # placeholder with a default, lest graph optimisation read the files to see whether they are constant.
    paths = tf.placeholder_with_default(list(records.files), [len(records.files)], name='files')
    row, read = 0, memory.initializer
    for i, path in enumerate(records.files):
        with tf.control_dependencies([read]):
            rows = tf.reshape(tf.io.decode_raw(tf.io.read_file(paths[i]), tf.uint8), [-1, RECORD_BYTES])
            count = os.path.getsize(path) // RECORD_BYTES
            read = tf.scatter_update(memory, tf.range(row, row + count), rows).op
            row += count
    return memory, read


def shuffled(positions, count, seed):
    """Returns the examples at positions: in each epoch, each of `count` examples exactly once.

    Args:
      positions: int64 [n].
      count: examples in an epoch.
      seed: int.

    Returns:
      int64 [n] in [0, count).
    """
    epochs = positions // count
    seeds = tf.stack([tf.fill(tf.shape(epochs), tf.constant(seed, tf.int64)), tf.zeros_like(epochs), epochs], 1)
    return tf.raw_ops.RandomIndexShuffle(
        index=positions % count, seed=tf.cast(seeds, tf.int32), max_index=tf.constant(count - 1, tf.int64),
        rounds=_SHUFFLE_ROUNDS)


def draws(first_position, n, seed):
    """Returns float32 [n, 4] uniform in [0, 1): four random numbers of each position.

    One call of the counter-based generator Philox gives 128 bits; the position is its counter, so
    the numbers of a position are the same in whatever batch it lies.
    """
    counter = tf.stack([tf.cast(first_position, tf.uint64), tf.constant(0, tf.uint64)])
    return tf.raw_ops.StatelessRandomUniformV2(
        shape=[n, 4], key=tf.constant([seed], tf.uint64), counter=counter, alg=_PHILOX)


def distort(planes, numbers):
    """Crops, mirrors and stretches the contrast of images, as their random numbers say.

    Args:
      planes: uint8 [n, 3, 32, 32].
      numbers: float32 [n, 4] in [0, 1): row, column, mirror, contrast.

    Returns:
      float32 [n, 3, 24, 24], not standardised.
    """
    corners = tf.floor(numbers[:, :2] * (SIZE - IMAGE_SIZE + 1))
    first, last = corners / (SIZE - 1), (corners + (IMAGE_SIZE - 1)) / (SIZE - 1)
    left, right = first[:, 1], last[:, 1]
    mirror = numbers[:, 2] < 0.5
    boxes = tf.stack([first[:, 0], tf.where(mirror, right, left), last[:, 0], tf.where(mirror, left, right)], 1)
    # One operation crops, mirrors (a box from right to left) and converts. Its sampling points are
    # pixels up to rounding, and `nearest` makes them exact. Every plane is an image of its own to it.
    crops = tf.image.crop_and_resize(tf.reshape(planes, [-1, SIZE, SIZE, 1]), tf.repeat(boxes, 3, 0),
                                     tf.range(3 * planes.shape[0]), [IMAGE_SIZE, IMAGE_SIZE], method='nearest')
    crops = tf.reshape(crops, [-1, 3, IMAGE_SIZE, IMAGE_SIZE])
    means = tf.reduce_mean(crops, [2, 3], keepdims=True)
    return (crops - means) * (0.2 + 1.6 * numbers[:, 3])[:, None, None, None] + means


def standardise(planes):
    """Scales each image to mean 0 and variance 1.

    The classic recipe also shifts the brightness before this. Standardising cancels a shift exactly,
    so it is left out.

    Args:
      planes: float32 [n, 3, height, width].

    Returns:
      float32 [n, height, width, 3]; the standard deviation counts as at least 1/sqrt(number of
      elements), as in `tf.image.per_image_standardization`.
    """
    elements = int(planes.shape[1] * planes.shape[2] * planes.shape[3])
    mean, variance = tf.nn.moments(planes, [1, 2, 3], keepdims=True)
    return tf.transpose((planes - mean) * tf.minimum(tf.rsqrt(variance), elements ** 0.5), [0, 2, 3, 1])


def train_batch(records, first_position, batch_size, seed):
    """Returns the batch of `batch_size` consecutive positions.

    Args:
      records: the variable that `load` makes.
      first_position: int64 scalar.
      batch_size: int.
      seed: int.

    Returns:
      (images float32 [batch_size, 24, 24, 3], distorted and standardised; labels int32 [batch_size]).
    """
    positions = first_position + tf.range(batch_size, dtype=tf.int64)
    labels, planes = _split(tf.gather(records, shuffled(positions, records.shape[0], seed)))
    return standardise(distort(planes, draws(first_position, batch_size, seed))), labels


def _split(rows):
    """Returns (labels int32 [n], planes uint8 [n, 3, 32, 32]) of records uint8 [n, 3073]."""
    return tf.cast(rows[:, 0], tf.int32), tf.reshape(rows[:, 1:], [-1, 3, SIZE, SIZE])


class Source:
    """The training batches of all towers.

    Args:
      records: a `records.Records`.
      hosts: for each tower the CPU device beside it, which reads the records and makes its batches.
      batch_size: int, of one tower.
      seed: int.
    """

    def __init__(self, records, hosts, batch_size, seed):
        self._hosts, self._batch_size, self._seed = hosts, batch_size, seed
        self._loaded = {}
        for host in hosts:
            if host not in self._loaded:
                with tf.device(host):
                    self._loaded[host] = load(records)

    def side_by_side(self, start, stop, devices=None):
        """Gives tower k the k-th batch of every step.

        Args:
          start, stop: int64 scalar tensors, the first position and the one before which the stream ends;
            read when it is started.
          devices: the GPUs to whose memory each tower's batch is copied before it is needed; None: none.

        Returns:
          (for each tower what `train_batch` returns; operations that read the records and start the
          streams, which want to run in the session's local initialisation, after a restore).
        """
        batches, starts = [], []
        for k, host in enumerate(self._hosts):
            with tf.device(host):
                positions = tf.data.Dataset.range(start + k * self._batch_size, stop,
                                                  len(self._hosts) * self._batch_size)
                iterator, begin = self._batches(positions, host, devices[k] if devices else None)
                batches.append(iterator.get_next())
                starts.append(begin)
        return batches, starts

    def take_turns(self, start, stop):
        """Gives whichever tower comes next the next batch; arguments and result as of `side_by_side`."""
        positions = tf.data.Dataset.range(start, stop, self._batch_size)
        if len(self._loaded) == 1:
            iterator, begin = self._batches(positions, self._hosts[0])
            return [iterator.get_next() for _ in self._hosts], [begin]
        # Only positions travel between machines; each makes its own batches.
        iterator, begin = _iterator(positions, [read for _, read in self._loaded.values()])
        batches = []
        for host in self._hosts:
            first = iterator.get_next()
            with tf.device(host):
                batches.append(train_batch(self._loaded[host][0], first, self._batch_size, self._seed))
        return batches, [begin]

    def _batches(self, positions, host, device=None):
        """Returns (an iterator of the batches at positions; the operation that reads the records and starts it)."""
        memory, read = self._loaded[host]
        batches = positions.map(_as_graph(lambda first: train_batch(memory, first, self._batch_size, self._seed)))
        batches = batches.prefetch(2)
        if device is None:
            return _iterator(batches, [read])
        with tf.device(device):
            return _iterator(batches.apply(tf.data.experimental.copy_to_device(device, host)).prefetch(1), [read])


def _iterator(dataset, after):
    options = tf.data.Options()
    # There is nothing to tune, and closing a session waits up to a minute for the tuner's thread.
    options.autotune.enabled = False
    dataset = dataset.with_options(options)
    iterator = tf.data.Iterator.from_structure(tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset))
    with tf.control_dependencies(after):
        return iterator, iterator.make_initializer(dataset)


def eval_batches(records, num_examples, batch_size):
    """The first `num_examples` examples in order, centrally cropped and standardised.

    Args:
      records: the variable that `load` makes; to be read once, before the first pass.
      num_examples: int.
      batch_size: int.

    Returns:
      (a `tf.data.Iterator` of (images float32 [n, 24, 24, 3], labels int32 [n]), n being batch_size
      but for the last batch; the operation that starts it at the first example).
    """
    edge = (SIZE - IMAGE_SIZE) // 2

    def batch(first):
        # Not records[first:last], which copies the whole variable: one that was scattered into is read so.
        rows = tf.gather(records, tf.range(first, tf.minimum(first + batch_size, num_examples)))
        labels, planes = _split(rows)
        return standardise(tf.cast(planes[:, :, edge:-edge, edge:-edge], tf.float32)), labels

    starts = tf.data.Dataset.range(0, num_examples, batch_size)
    return _iterator(starts.map(_as_graph(batch)).prefetch(2), [])
