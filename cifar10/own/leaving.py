"""Where gradients of variables leave TensorFlow's functions while a model function runs: there, towers are averaged."""
import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.base.own_files import place_now
from cifar10.own.code import BrokenRule

LEAVING = 'gradients_leaving'  # the graph collection of `Leaving`


class Leaving(NamedTuple):
    """A gradient that leaves `compute_gradients` or `tf.gradients`: its value, and what the function's author gets.

    Each is a tensor, or the values and the indices of a sparse gradient.
    """
    variable: tf.Variable
    values: list[tf.Tensor]
    taken: list[tf.Tensor]


@contextlib.contextmanager
def marking() -> Iterator[None]:
    """Context in which the current graph notes where gradients of variables leave TensorFlow's functions."""
    compute, gradients, taped = tf.train.Optimizer.compute_gradients, tf.gradients, tf.GradientTape.gradient

    def left(gradient, variable):
        if gradient is None or not isinstance(variable, tf2.Variable):
            return gradient
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        values = [gradient.values, gradient.indices] if is_sparse else [tf.convert_to_tensor(gradient)]
        taken = [tf.identity(value, name='gradient_of_the_batch') for value in values]
        tf.add_to_collection(LEAVING, Leaving(variable, values, taken))
        return tf.IndexedSlices(*taken, tf.shape(variable)) if is_sparse else taken[0]

    def compute_gradients(optimizer, *arguments, **options):
        pairs = compute(optimizer, *arguments, **options)
        return [(left(gradient, variable), variable) for gradient, variable in pairs]

    def of(ys, xs, *arguments, **options):
        found = gradients(ys, xs, *arguments, **options)
        return [left(*each) for each in zip(found, xs if isinstance(xs, (list, tuple)) else [xs])]

    def of_tape(tape, target, sources, *arguments, **options):
        found = taped(tape, target, sources, *arguments, **options)
        return tf.nest.map_structure(left, found, sources)

    def refuse(*arguments, **options):
        raise BrokenRule(f'it uses a SyncReplicasOptimizer{place_now()}; leave it out: except in async and local, '
                         'all towers take a step together')
    replicas = tf.train.SyncReplicasOptimizer
    synchronised = replicas.apply_gradients
    tf.train.Optimizer.compute_gradients, tf.gradients, replicas.apply_gradients = compute_gradients, of, refuse
    tf.GradientTape.gradient = of_tape
    try:
        yield
    finally:
        tf.train.Optimizer.compute_gradients, tf.gradients, replicas.apply_gradients = compute, gradients, synchronised
        tf.GradientTape.gradient = taped
