"""The input pipeline: graph operations that deliver the batches of any source to the towers."""
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

AHEAD = 2  # number of batches of a stream that wait on the CPU
_CORES = len(os.sched_getaffinity(0))  # in a cluster, the chief's cores count

# For functions in `Dataset.map`: they need no AutoGraph, which takes a second to read them.
as_graph = tf.autograph.experimental.do_not_convert


class Source:
    """The input of a training run: the towers' batches from any position. It exists before the graph.

    A position is the index of an example in an endless stream of examples. A step has consecutive positions for the
    examples of all towers, and tower k gets the k-th `batch_size` of them. A batch is a function of its position and
    the source, so the number of consumed positions, `examples_seen`, is the only saved state of the input.

    This class is the interface; `images.ImageSource` implements it for images with classes. A batch has any structure
    of tensors that `tf.data` supports, the same at all positions.

    Attributes:
      batch_size: number of examples of one tower in one step.
      count: number of examples in an epoch; None if it is unknown.
      facts: facts for the record of the run: names of the fields of a `run.record.RunRecord` -> values.
      kept: the files that a resumed run needs.
      classes, class_counts: the names of the classes, and the examples of each; empty if examples have no classes.
      is_sequential: whether a batch requires reading all earlier batches, so each machine has one stream.
      is_made: whether the data exist.
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
        """Adds the data to the graph, on the current device: the CPU of a machine that makes batches.

        Returns:
          (the data, for `stream` and `batch` on this machine; the operation that reads the data, which runs once in a
          session, before the first batch).
        """
        raise NotImplementedError

    def stream(self, data: Any, start: tf.Tensor, stop: tf.Tensor, towers: Sequence[int], num_towers: int,
               at_a_time: int | None) -> tf.data.Dataset:
        """Returns the batches of some towers, ordered by step, and within a step by tower.

        Args:
          data: from `load`, on the same machine.
          start, stop: int64 scalars, the first position and the end of the stream (exclusive).
          towers: the indices of these towers.
          num_towers: the number of all towers of a step, with `batch_size` positions each.
          at_a_time: maximum number of batches to make in parallel; None: 1.
        """
        raise NotImplementedError

    def batch(self, data: Any, first: tf.Tensor, step: tf.Tensor) -> Any:
        """Returns the batch at a position, for asynchronous towers on several machines.

        Args:
          data: from `load`, on the same machine.
          first, step: int64 scalars, the first position of the batch and of its step.
        """
        raise NotImplementedError

    def sample(self) -> Any:
        """Returns some examples, preprocessed as in evaluation; a network may compute initial values from them."""
        raise NotImplementedError


def tower_batches(source: Source, start: tf.Tensor, stop: tf.Tensor, hosts: Sequence[str], num_streams: int = 1,
                  in_step: bool = True, devices: Sequence[str] | None = None) -> tuple[Callable[[int], Any], list]:
    """Builds the towers' input.

    Args:
      start, stop: int64 scalars, the first position and the end of the stream (exclusive); read when the stream
        starts.
      hosts: for each tower, the CPU that makes its batches.
      num_streams: tower k reads stream k mod num_streams. Towers with the same stream must read it in tower order.
      in_step: whether every step takes one batch for each tower, the k-th for tower k. If not, each batch is a step,
        and goes to the next tower that asks.
      devices: for each tower, the GPU to copy its batches to in advance; None copies nothing. If `in_step` is false,
        nothing is copied for several towers.

    Returns:
      (function k -> the batch of tower k, to call while the tower is built; operations that read the data and start
      the streams, to run in the session's local initialisation, after a restore).
    """
    loaded = {}  # the CPU of a machine -> the result of `load`
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
    streams: list[Sequence[int]] = [range(first, num_towers, num_streams) for first in range(num_streams)]
    if source.is_sequential:
        streams = [[k for k in range(num_towers) if hosts[k] == host] for host in dict.fromkeys(hosts[:num_towers])]
    stream_of = {k: number for number, towers in enumerate(streams) for k in towers}
    iterators, start_ops, places = [], [], []
    for towers in streams:
        host = place = hosts[towers[0]]
        data, read = loaded[host]
        with tf.device(host):
            batches = source.stream(data, start, stop, towers, num_towers, at_a_time).prefetch(AHEAD)
        # GPUs cannot hold text, and may not support the variants that tf.data uses for sparse and ragged tensors.
        is_copied = all(isinstance(spec, tf.TensorSpec) and spec.dtype != tf.string
                        for spec in tf.nest.flatten(batches.element_spec))
        if devices and len({devices[k] for k in towers}) == 1 and is_copied:
            place = devices[towers[0]]
        with tf.device(place):
            if place != host:
                batches = batches.apply(tf.data.experimental.copy_to_device(place, host)).prefetch(1)
            iterator, start_op = started(batches, [read])
        iterators.append(iterator)
        start_ops.append(start_op)
        places.append(place)
    last_reads: dict[int, list] = {}  # stream -> the read of its last batch; towers on several devices read in order

    def next_batch(k):
        stream = stream_of.get(k, 0)
        with tf.device(places[stream]), tf.control_dependencies(last_reads.get(stream, ())):
            batch = iterators[stream].get_next()
        if source.is_sequential and in_step:
            last_reads[stream] = [tf.nest.flatten(batch, expand_composites=True)[0].op]
        return batch
    return next_batch, start_ops


def _batches_of_machines(source, start, stop, hosts, loaded):
    """Builds the input of asynchronous towers on several machines: only positions travel between machines."""
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
    """Returns the number of a GPU's batches to make in parallel; they are used in order."""
    # A core prepares 45,000 CIFAR-10 images per second, and an H200 trains the classic network on 175,000. CPU devices
    # need their cores for training.
    return max(_CORES // streams, 1)


def batches_ahead(on_gpus: bool, streams: int) -> int:
    """Returns how many batches of a stream may wait, besides the batch of the current step.

    Args:
      on_gpus: whether the batches are for GPUs.
      streams: number of streams of a machine.
    """
    # Copying to a GPU needs additional buffers.
    return AHEAD + (_at_a_time(streams) + 1) * on_gpus


def started(dataset: tf.data.Dataset, after: Sequence[tf.Operation]) -> tuple[tf.data.Iterator, tf.Operation]:
    """Returns (an iterator of a dataset, the operation that starts it after the operations `after`)."""
    options = tf.data.Options()
    # Autotuning has no effect here, but closing a session waits up to a minute for its thread.
    options.autotune.enabled = False
    dataset = dataset.with_options(options)
    form = tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset), None
    iterator = tf.data.Iterator.from_structure(*form, tf.data.get_output_classes(dataset))
    with tf.control_dependencies(after):
        return iterator, iterator.make_initializer(dataset)


def copied(dataset: tf.data.Dataset) -> Callable[..., tf.data.Dataset]:
    """Returns a function that adds a copy of a data set to the current graph; it ignores its arguments."""
    variant, structure = tf.data.experimental.to_variant(dataset), dataset.element_spec
    if hasattr(variant, 'numpy'):  # an eager dataset
        definition = tf.GraphDef.FromString(
            tf.raw_ops.DatasetToGraphV2(input_dataset=variant, strip_device_assignment=True).numpy())
        result = next(node for node in definition.node if node.op == '_Retval')
        name = f'{result.input[0]}:0'
        definition.node.remove(result)
    else:
        definition, name = variant.graph.as_graph_def(), variant.name
    return lambda *_: tf.data.experimental.from_variant(
        *tf.import_graph_def(definition, return_elements=[name]), structure)
