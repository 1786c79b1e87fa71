"""Trains on a user's data set: a function that returns a `tf.data.Dataset` of batches.

    def data(mode, batch_size):  # mode is 'train', 'eval' or 'infer'
        ...
        return dataset  # its elements are (features, labels) or features, in any structure

The function may also return tensors computed from `dataset.make_one_shot_iterator().get_next()`.

It is called once, in a separate graph. All other graphs get a copy of its data set.
"""
import functools
import hashlib
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.base.graphs import cpu_session, seeded_graph
from cifar10.data.pipeline import Source, as_graph, started
from cifar10.own import code
from cifar10.own.patches import patched
from cifar10.own.refusals import BrokenRule, phrase

TRAIN, EVAL, INFER = 'train', 'eval', 'infer'  # as tf.estimator.ModeKeys has them
_OF_PYTHON = {'PyFunc', 'PyFuncStateless', 'EagerPyFunc'}  # types of operations that only this process can run


def batches(name: str) -> Callable[..., 'Batches']:
    """Returns a function (batch size, seed, mode) -> Batches for 'FILE.py:FUNCTION'."""
    return functools.partial(Batches, name)


def examples_of(batch: Any) -> tf.Tensor:
    """Returns the number of examples in a batch, int64: the length of its first component."""
    first = tf.nest.flatten(batch)[0]
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int64)
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    # A `tf.squeeze` turns a batch of one example into a scalar.
    return tf.concat([tf.shape(first, out_type=tf.int64), [1]], 0)[0]


def rows_of(leaf: Any) -> tf.Tensor:
    """Returns a tensor of a batch, or the values of a sparse or ragged tensor."""
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.flat_values
    return leaf.values if isinstance(leaf, tf.SparseTensor) else tf.convert_to_tensor(leaf)


def _called(function, *arguments):
    """Calls a function; returns its result, or a data set of the tensors it computed from a one-shot iterator."""
    taken = []  # (data set, a structure of placeholders that replace its elements)

    def make(dataset, *_):
        taken.append((dataset, _placeholders(dataset.element_spec)))
        return types.SimpleNamespace(get_next=lambda name=None, element=taken[-1][1]: element)
    with patched({(owner, 'make_one_shot_iterator'): make for owner in (tf.data, tf.data.Dataset)}):
        result = function(*arguments)
    if not taken or isinstance(result, tf2.data.Dataset):
        return result
    dataset, placeholders = taken[0]
    given = [each.name for each in tf.nest.flatten(placeholders, expand_composites=True)]
    made = [each.name for each in tf.nest.flatten(result, expand_composites=True)]
    definition = tf.graph_util.extract_sub_graph(
        tf.get_default_graph().as_graph_def(), [name.partition(':')[0] for name in made])
    needed = {f'{node.name}:0' for node in definition.node}

    def of_element(*element):
        tensors = zip(given, tf.nest.flatten(element, expand_composites=True))
        found = tf.import_graph_def(definition, {name: each for name, each in tensors if name in needed}, made)
        return tf.nest.pack_sequence_as(result, found, expand_composites=True)
    return dataset.map(as_graph(of_element))


def _placeholders(structure):
    specs = tf.nest.flatten(structure, expand_composites=True)
    return tf.nest.pack_sequence_as(
        structure, [tf.placeholder(each.dtype, each.shape) for each in specs], expand_composites=True)


class Batches(Source):
    """Produces the batches of a user's function for a mode: a single pass, or repeated passes in training.

    Args:
      source: 'FILE.py:FUNCTION', or a function (mode, batch size) that returns the data set.
      seed: the seed of the function's graph, so that draws without a seed repeat.

    Attributes:
      structure: the structure of a batch, with `tf.TypeSpec`s.
      rows: in training, the rows of the first batch, as `made_up.rehearse` takes them.

    Raises:
      UsageError: the function does not exist or fails; it yields no batch of `batch_size` examples in training; or its
        data set is endless in another mode.
    """
    is_sequential = True

    def __init__(self, source: Any, batch_size: int, seed: int, mode: str = TRAIN):
        self.name = source if isinstance(source, str) else 'a tf.data.Dataset'
        self.batch_size, self._mode = batch_size, mode
        function = source if self.name is not source else code.function(
            'dataset', source, 'mode, batch_size', each_time=True)
        # Python functions that the data set calls live as long as this graph.
        with code.usage_errors('dataset', self.name), seeded_graph(seed) as self._graph:
            dataset = _called(function, mode, batch_size)
            if not isinstance(dataset, tf2.data.Dataset):
                raise BrokenRule(f'it returns {phrase(dataset)}; return a tf.data.Dataset of batches')
            self.structure = dataset.element_spec
            if getattr(tf.nest.flatten(self.structure)[0], 'shape', tf.TensorShape(None)).rank == 0:
                raise BrokenRule('its elements are single examples; batch them with dataset.batch(batch_size)')
            self._variant = tf.data.experimental.to_variant(dataset).name
            self._tables = [each.name for each in tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS)]
            self._definition = self._graph.as_graph_def()
        for node in self._nodes():  # otherwise the order would change after a resume
            if 'deterministic' in node.attr and node.attr['deterministic'].s == b'false':
                node.attr['deterministic'].s = b'true'
        self._look()

    def _nodes(self):
        yield from self._definition.node
        for function in self._definition.library.function:
            yield from function.node_def

    def _look(self):
        """Finds the number of examples and the digest of the first batch."""
        self.count, digest = None, hashlib.sha256()
        with code.usage_errors('dataset', self.name), cpu_session() as session:
            data, read = self.load()
            iterator, start = started(self._whole(data) if self._mode == TRAIN else data, [read])
            batch = iterator.get_next()
            rows = [rows_of(each) for each in tf.nest.flatten(batch)]
            cardinality = tf.data.experimental.cardinality(data)
            session.run(start)
            batches = int(session.run(cardinality))
            if self._mode != TRAIN:
                if batches == tf.data.experimental.INFINITE_CARDINALITY:
                    raise BrokenRule(f"it has no end in mode {self._mode!r}; call repeat() in mode 'train' only")
                return
            try:
                values, self.rows = session.run((tf.nest.flatten(batch, expand_composites=True), rows))
                for value in values:
                    digest.update(f'{value.dtype} {value.shape} {value.tolist()}'.encode())
            except tf.errors.OutOfRangeError:
                raise BrokenRule(f'it has no batch of {self.batch_size} examples; use dataset.batch(batch_size), or '
                                 'reduce --batch_size') from None
        self.count = batches * self.batch_size if batches > 0 else None
        self.facts = dict(classes=None, examples=self.count, images_folder=None, images_sha256=digest.hexdigest())

    @property
    def needs_this_process(self) -> bool:
        """Whether the data set calls Python functions, which exist only in this process."""
        return any(node.op in _OF_PYTHON for node in self._nodes())

    def placeholders(self) -> Any:
        """Returns a batch of placeholders in the current graph."""
        return _placeholders(self.structure)

    def load(self):
        variant, *tables = tf.import_graph_def(
            self._definition, return_elements=[self._variant, *self._tables], name='dataset')
        return tf.data.experimental.from_variant(variant, self.structure), tf.group(tables)

    def _whole(self, data):
        """Drops an incomplete last batch."""
        return data.filter(as_graph(lambda *batch: tf.equal(examples_of(batch), self.batch_size)))

    def stream(self, data, start, stop, towers, num_towers, at_a_time):
        batches = self._whole(data).repeat().skip(start // self.batch_size)
        if len(towers) < num_towers:
            numbered = batches.enumerate().filter(as_graph(
                lambda number, _: tf.reduce_any(tf.equal(number % num_towers, tf.constant([*towers], tf.int64)))))
            batches = numbered.map(as_graph(lambda _, batch: batch))
        return batches

    def __str__(self):
        size = f'at most {self.count:,} examples' if self.count else 'of unknown length'
        return f'{self.name}, {size}; batches with fewer than {self.batch_size} examples are dropped'
