"""Marks the gradients of variables that leave TensorFlow's functions, because towers are averaged there."""
from contextlib import AbstractContextManager
from typing import NamedTuple

import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.own.patches import patched

MARKS = 'gradient_marks'  # the graph collection of `Mark`


class Mark(NamedTuple):
    """A gradient that leaves `compute_gradients` or `tf.gradients`.

    Attributes:
      values: the gradient, a tensor, or the values and the indices of a sparse gradient.
      taken: the gradient that the author's code receives.
    """
    variable: tf.Variable
    values: list[tf.Tensor]
    taken: list[tf.Tensor]


def marking() -> AbstractContextManager:
    """Returns a context that collects a `Mark` in the current graph for each gradient of a variable."""
    compute, gradients, taped = tf.train.Optimizer.compute_gradients, tf.gradients, tf.GradientTape.gradient

    def compute_gradients(optimizer, *arguments, **options):
        pairs = compute(optimizer, *arguments, **options)
        return [(_marked(gradient, variable), variable) for gradient, variable in pairs]

    def of(ys, xs, *arguments, **options):
        found = gradients(ys, xs, *arguments, **options)
        return [_marked(*each) for each in zip(found, xs if isinstance(xs, (list, tuple)) else [xs])]

    def of_tape(tape, target, sources, *arguments, **options):
        found = taped(tape, target, sources, *arguments, **options)
        return tf.nest.map_structure(_marked, found, sources)
    return patched({
        (tf.train.Optimizer, 'compute_gradients'): compute_gradients, (tf, 'gradients'): of,
        (tf.GradientTape, 'gradient'): of_tape})


def _marked(gradient, variable):
    if gradient is None or not isinstance(variable, tf2.Variable):
        return gradient
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    values = [gradient.values, gradient.indices] if is_sparse else [tf.convert_to_tensor(gradient)]
    taken = [tf.identity(value, name='gradient_of_the_batch') for value in values]
    tf.add_to_collection(MARKS, Mark(variable, values, taken))
    return tf.IndexedSlices(*taken, tf.shape(variable)) if is_sparse else taken[0]
