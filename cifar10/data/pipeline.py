"""The input pipeline: brings the batches of a source to the towers, as graph operations. It knows no images."""
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

AHEAD = 2  # batches of a stream that wait on the CPU
_CORES = len(os.sched_getaffinity(0))  # of the chief, if other tasks have other cores

# Functions that are given to `Dataset.map` consist of graph operations already, and AutoGraph takes a second to read
# them.
as_graph = tf.autograph.experimental.do_not_convert


class Source:
    """The input of a training: the towers' batches from any position on. A value, which is made before the graph.

    A position is the index of an example in an endless stream of examples. A step has consecutive positions, as many as
    all towers have examples, and tower k gets the k-th `batch_size` of them. A batch depends on nothing but its
    position and the source, so the number of consumed positions, `examples_seen`, is the only state of the input that
    is saved.

    This class is the interface; `images.ImageSource` is the kind for images with classes. A batch has any structure of
    tensors that `tf.data` supports, the same at all positions. The recipe of the run takes it as it is.

    Attributes:
      batch_size: examples of one tower in one step.
      count: examples in an epoch; None if it is unknown.
      facts: what the record of a run stores of the input: names of the fields of a `run.record.RunRecord` -> values.
      kept: the files that the run needs when it is started again.
      classes, class_counts: the names of the classes, and the examples of each; none if examples have no classes.
      is_sequential: whether a batch is found only by reading those before it, so that each machine has one stream.
      is_made: whether the data exists already.
    """
    batch_size: int
    count: int | None
    facts: Mapping[str, Any]
    kept: Collection[str] = ()
    classes: Sequence[str] = ()
    class_counts: Sequence[int] = ()
    is_sequential = False
    is_made = True

    def load(self) -> tuple[Any, tf.Operation]:
        """Adds the data to the graph, on the device of the caller: the CPU of a machine that makes batches.

        Returns:
          (the data, which `stream` and `batch` take on this machine; the operation that reads them, which runs once in
          a session, before any batch is made).
        """
        raise NotImplementedError

    def stream(self, data: Any, start: tf.Tensor, stop: tf.Tensor, towers: Sequence[int], num_towers: int,
               at_a_time: int | None) -> tf.data.Dataset:
        """Returns the batches of some towers, in the order of steps, and in each step of towers.

        Args:
          data: as `load` returns them, on the same machine.
          start, stop: int64 scalars, the position of the first step and the end of the last one (exclusive).
          towers: the numbers of these towers.
          num_towers: the number of all towers of a step, each of which has `batch_size` positions.
          at_a_time: how many batches may be made at the same time; None: one.
        """
        raise NotImplementedError

    def batch(self, data: Any, first: tf.Tensor, step: tf.Tensor) -> Any:
        """Returns the batch at a position, for towers that update on their own and are on several machines.

        Args:
          data: as `load` returns them, on the same machine.
          first, step: int64 scalars, the first position of the batch and of its step.
        """
        raise NotImplementedError

    def sample(self) -> Any:
        """Returns some examples as a network is fed them in evaluation, from which it may compute initial values."""
        raise NotImplementedError


def tower_batches(source: Source, start: tf.Tensor, stop: tf.Tensor, hosts: Sequence[str], num_streams: int = 1,
                  in_step: bool = True, devices: Sequence[str] | None = None) -> tuple[Callable[[int], Any], list]:
    """Builds the towers' input.

    Args:
      start, stop: int64 scalars, the first position and the end of the stream (exclusive); read when the stream is
        started.
      hosts: for each tower, the CPU of its machine, where its batches are made.
      num_streams: tower k reads stream k mod num_streams. Towers of one stream must read it in their order.
      in_step: whether every step takes one batch for each tower, the k-th for tower k. Otherwise each batch is a step
        of its own, and goes to whichever tower asks next.
      devices: for each tower, the GPU to which its batches are copied before they are needed; None copies nothing.
        If `in_step` is false, nothing is copied for several towers.

    Returns:
      (function k -> the batch of tower k, to be called where the tower is built; operations that read the data and
      start the streams, to be run in the session's local initialisation, after a restore).
    """
    loaded = {}  # the CPU of a machine -> what `load` has returned there
    for host in hosts:
        if host not in loaded:
            with tf.device(host):
                loaded[host] = source.load()
    num_towers = len(hosts)
    if not in_step and num_towers > 1:
        if len(loaded) > 1:
            return _batches_of_machines(source, start, stop, hosts, loaded)
        num_towers, num_streams, devices = 1, 1, None
    at_a_time = _at_a_time(num_streams // len(loaded)) if devices else None
    streams = [range(first, num_towers, num_streams) for first in range(num_streams)]
    if source.is_sequential:
        streams = [[k for k in range(num_towers) if hosts[k] == host] for host in dict.fromkeys(hosts[:num_towers])]
    stream_of = {k: number for number, towers in enumerate(streams) for k in towers}
    iterators, start_ops, places = [], [], []
    for towers in streams:
        host = place = hosts[towers[0]]
        data, read = loaded[host]
        with tf.device(host):
            batches = source.stream(data, start, stop, towers, num_towers, at_a_time).prefetch(AHEAD)
        # Text has no place on a GPU, and tf.data has sparse and ragged tensors as variants, which need not have one.
        is_copied = all(isinstance(each, tf.TensorSpec) and each.dtype != tf.string
                        for each in tf.nest.flatten(batches.element_spec))
        if devices and len({devices[k] for k in towers}) == 1 and is_copied:
            place = devices[towers[0]]
        with tf.device(place):
            if place != host:
                batches = batches.apply(tf.data.experimental.copy_to_device(place, host)).prefetch(1)
            iterator, start_op = started(batches, [read])
        iterators.append(iterator)
        start_ops.append(start_op)
        places.append(place)
    taken = {}  # stream -> the operation that has taken its last batch, where the towers of other devices wait for it

    def next_batch(k):
        stream = stream_of.get(k, 0)
        with tf.device(places[stream]), tf.control_dependencies(taken.get(stream, ())):
            batch = iterators[stream].get_next()
        if source.is_sequential and in_step:
            taken[stream] = [tf.nest.flatten(batch, expand_composites=True)[0].op]
        return batch
    return next_batch, start_ops


def _batches_of_machines(source, start, stop, hosts, loaded):
    """As `tower_batches`, where each batch is a step of its own: only positions travel between machines."""
    with tf.device(hosts[0]):
        positions, start_op = started(
            tf.data.Dataset.range(start, stop, source.batch_size), [read for _, read in loaded.values()])

    def next_batch(k):
        with tf.device(hosts[0]):
            position = positions.get_next()
        data, _ = loaded[hosts[k]]
        with tf.device(hosts[k]):
            return source.batch(data, position, position)
    return next_batch, [start_op]


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
    return AHEAD + (_at_a_time(streams) + 1) * on_gpus


def started(dataset: tf.data.Dataset, after: Sequence[tf.Operation]) -> tuple[tf.data.Iterator, tf.Operation]:
    """Returns (an iterator of a dataset, the operation that starts it once the operations `after` have run)."""
    options = tf.data.Options()
    # There is nothing to tune, and closing a session waits up to a minute for the tuner's thread.
    options.autotune.enabled = False
    dataset = dataset.with_options(options)
    form = tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset), None
    iterator = tf.data.Iterator.from_structure(*form, tf.data.get_output_classes(dataset))
    with tf.control_dependencies(after):
        return iterator, iterator.make_initializer(dataset)


def copied(dataset: tf.data.Dataset) -> Callable[..., tf.data.Dataset]:
    """Returns a function that adds a copy of a data set to the current graph; it ignores its arguments."""
    variant, structure = tf.data.experimental.to_variant(dataset), dataset.element_spec
    if hasattr(variant, 'numpy'):  # it was made outside of a graph
        definition = tf.GraphDef.FromString(
            tf.raw_ops.DatasetToGraphV2(input_dataset=variant, strip_device_assignment=True).numpy())
        result = next(node for node in definition.node if node.op == '_Retval')
        name = f'{result.input[0]}:0'
        definition.node.remove(result)
    else:
        definition, name = variant.graph.as_graph_def(), variant.name
    return lambda *_: tf.data.experimental.from_variant(
        *tf.import_graph_def(definition, return_elements=[name]), structure)
