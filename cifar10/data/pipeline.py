"""The input pipeline: batches of augmented images, built as graph operations on the CPU.

A batch is a pure function of (seed, position), where a position is an index into the endless stream of
shuffled epochs. So the number of consumed positions is all the state that has to be saved.
"""
import os
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from cifar10.data.augment import Augmentation
from cifar10.data.draws import Positions, shuffled
from cifar10.data.images import Images, as_graph, loaded
from cifar10.data.records import Records

_AHEAD = 2  # batches of a stream that wait on the CPU
_CORES = len(os.sched_getaffinity(0))  # of the chief, if other tasks have other cores


def _at_a_time(streams):
    """Returns how many batches for a GPU are made at the same time, and used in their order."""
    # A core makes 45,000 images of CIFAR-10 in a second, and an H200 trains the classic network with 175,000. CPU
    # devices need their cores themselves.
    return max(_CORES // streams, 1)


def batches_ahead(on_gpus: bool, streams: int) -> int:
    """Returns how many batches of a stream may wait, besides one that is being made.

    Args:
      on_gpus: whether they are for GPUs.
      streams: how many streams a machine has.
    """
    # Those that are copied to a GPU have buffers there and on the way.
    return _AHEAD + (_at_a_time(streams) + 1) * on_gpus


def train_batch(images: Images, augmentation: Augmentation, first_position: tf.Tensor,
                step_position: tf.Tensor, batch_size: int, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the batch of `batch_size` consecutive positions.

    Args:
      images: as `images.loaded` returns them.
      augmentation: applied to the images.
      first_position, step_position: int64 scalars, the first position of the batch and of its step.
      seed: seed of the order of the examples.

    Returns:
      (images float32 [batch_size, height, width, 3], labels int32 [batch_size]).
    """
    positions = first_position + tf.range(batch_size, dtype=tf.int64)
    examples = shuffled(positions, images.count, seed)
    epochs = positions // images.count
    return images.batch(
        augmentation, examples, Positions(first_position, step_position, examples, epochs, images.count))


class Source:
    """The training batches of all towers.

    Args:
      hosts: for each tower, the CPU device beside it, which reads the records and makes the tower's batches.
      num_streams: tower k reads stream k mod num_streams. Towers of one stream must read it in their order.
      augmentation: applied to the images.
      batch_size: examples of one tower in one step.
      seed: seed of the order of the examples.
    """

    def __init__(self, records: Records, hosts: Sequence[str], num_streams: int, augmentation: Augmentation,
                 batch_size: int, seed: int):
        self._hosts = hosts
        self._num_streams = num_streams
        self._augmentation = augmentation
        self._batch_size = batch_size
        self._seed = seed
        self._loaded = {}
        for host in hosts:
            if host not in self._loaded:
                with tf.device(host):
                    self._loaded[host] = loaded(records)

    def batches(self, start: tf.Tensor, stop: tf.Tensor, sharded: bool = True,
                devices: Sequence[str] | None = None) -> tuple[Callable[[int], tuple], list]:
        """Builds the towers' input.

        Args:
          start, stop: int64 scalars, the first position and the end of the stream (exclusive); read when the
            stream is started.
          sharded: whether every step takes one batch for each tower, the k-th for tower k. Otherwise the next
            batch goes to whichever tower asks next.
          devices: for each tower, the GPU to which its batches are copied before they are needed; None copies
            nothing. Batches that are not sharded over several towers are not copied ahead.

        Returns:
          (function k -> what `train_batch` returns, to be called where tower k is built; operations that read the
          records and start the streams, to be run in the session's local initialisation, after a restore).
        """
        if sharded or len(self._hosts) == 1:
            return self._sharded_batches(start, stop, devices)
        return self._shared_batches(start, stop)

    def _sharded_batches(self, start, stop, devices):
        iterators = []
        start_ops = []
        for first, host in enumerate(self._hosts[:self._num_streams]):
            with tf.device(host):
                steps = tf.data.Dataset.range(start, stop, len(self._hosts) * self._batch_size)
                # In each step, this stream has the batches of towers first, first + num_streams and so on.
                ahead = tf.range(first, len(self._hosts), self._num_streams, tf.int64) * self._batch_size
                positions = steps.map(as_graph(
                    lambda step, ahead=ahead: (step + ahead, tf.fill(tf.shape(ahead), step)))).unbatch()
                iterator, start_op = self._batches(positions, host, devices[first] if devices else None)
                iterators.append(iterator)
                start_ops.append(start_op)

        def next_batch(k):
            with tf.device(devices[k] if devices else self._hosts[k]):
                return iterators[k % self._num_streams].get_next()
        return next_batch, start_ops

    def _shared_batches(self, start, stop):
        """As `batches`, where the towers share one stream and each batch is a step of its own."""
        home = self._hosts[0]
        has_one_host = len(self._loaded) == 1
        with tf.device(home):
            positions = tf.data.Dataset.range(start, stop, self._batch_size)
            if has_one_host:
                iterator, start_op = self._batches(tf.data.Dataset.zip((positions, positions)), home)
            else:  # only positions travel between machines; each machine makes its own batches
                iterator, start_op = _iterator(positions, [images.read for images in self._loaded.values()])

        def next_batch(k):
            with tf.device(home):
                batch_or_position = iterator.get_next()
            if has_one_host:
                return batch_or_position
            with tf.device(self._hosts[k]):
                return train_batch(self._loaded[self._hosts[k]], self._augmentation, batch_or_position,
                                   batch_or_position, self._batch_size, self._seed)
        return next_batch, [start_op]

    def _batches(self, positions, host, device=None):
        """Returns (an iterator of the batches at positions, the operation that reads the records and starts it)."""
        images = self._loaded[host]
        batches = positions.map(as_graph(lambda first, step: train_batch(
            images, self._augmentation, first, step, self._batch_size, self._seed)),
            _at_a_time(self._num_streams // len(self._loaded)) if device else None).prefetch(_AHEAD)
        if device is None:
            return _iterator(batches, [images.read])
        with tf.device(device):
            return _iterator(batches.apply(tf.data.experimental.copy_to_device(device, host)).prefetch(1),
                             [images.read])


def _iterator(dataset, dependencies):
    """Returns (an iterator of a dataset, the operation that starts it once `dependencies` have run)."""
    options = tf.data.Options()
    # There is nothing to tune, and closing a session waits up to a minute for the tuner's thread.
    options.autotune.enabled = False
    dataset = dataset.with_options(options)
    iterator = tf.data.Iterator.from_structure(tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset))
    with tf.control_dependencies(dependencies):
        return iterator, iterator.make_initializer(dataset)


def eval_batches(images: Images, augmentation: Augmentation, num_examples: int, batch_size: int,
                 share: int = 0, shares: int = 1) -> tuple[tf.data.Iterator, tf.Operation]:
    """Returns the batches of the first `num_examples` examples, in order and without random changes.

    Args:
      images: as `images.loaded` returns them; the files must be read before the first pass.
      augmentation: applied to the images.
      share, shares: takes batch number `share` of every `shares` batches, for evaluation on several devices.

    Returns:
      (a `tf.data.Iterator` of (images float32 [n, height, width, 3], labels int32 [n]), the operation that
      starts it at the first example). n is `batch_size`, except in the last batch.
    """
    def batch(first):
        # Not a slice of the rows: TensorFlow copies all of a variable for it once the variable was scattered into.
        return images.batch(augmentation, tf.range(first, tf.minimum(first + batch_size, num_examples)), None)

    starts = tf.data.Dataset.range(share * batch_size, num_examples, shares * batch_size)
    return _iterator(starts.map(as_graph(batch)).prefetch(_AHEAD), [])
