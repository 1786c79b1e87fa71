"""Builds the summary operations of a step, on the CPU, for TensorBoard.

Users rely on the tags (docs/train.md). The raw operations use a tag unchanged; `tf.summary` would prepend
the name scope.
"""
import re
from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from cifar10.parallel.update import Step
from cifar10.run.events import LAYERS, LOSSES

# A histogram of 4.7 million activations takes longer than a training step; 0.9 million weights take as long.
# So histograms show the activations of 8 images, and every n-th value of a large tensor, at least 65,536
# values.
_HISTOGRAM_IMAGES = 8
_HISTOGRAM_VALUES = 1 << 16


def strip_tower(name: str) -> str:
    """Returns a name without the tower's prefix."""
    return re.sub(r'^tower_\d+/', '', name)


def losses(by_name: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns a tower's losses, float32 scalars, by figure name.

    Args:
      by_name: the losses by their names in the tower; empty for a whole model, which sums its own.

    Returns:
      Each loss as 'losses/<its name in the tower>'; and 'weight_loss', the sum of all losses of that name.
    """
    if not by_name:
        return {}
    weight_losses = [loss for name, loss in by_name.items() if re.search(r'weight_loss(_\d+)?_*$', name)]
    total = tf.add_n(weight_losses) if weight_losses else tf.zeros([])
    return dict({LOSSES + name: loss for name, loss in by_name.items()}, weight_loss=total)


def build(step: Step, activations: Sequence[tf.Tensor], own: Sequence[tf.Tensor]) -> tf.Tensor:
    """Builds the summary of a training step: the histograms.

    Args:
      activations: the first tower's layers, tensors named '<tower>/<layer>/<operation>'.
      own: summaries from a whole model.

    Returns:
      A string tensor: a serialised `tf.Summary`.
    """
    with tf.device('/cpu:0'), tf.name_scope('summaries/'):
        parts = [*own]
        for name, value in step.values.items():
            parts.append(_histogram(LAYERS + name, value))
        for gradient, variable in step.gradients:
            if gradient is not None:
                parts.append(_histogram(f'{LAYERS}{variable.op.name}/gradients', gradient))
        layers = set()
        for activation in activations:
            layer = LAYERS + strip_tower(activation.op.name).rsplit('/', 1)[0]
            if layer in layers:  # a layer with several activations
                layer = LAYERS + strip_tower(activation.op.name)
            layers.add(layer)
            parts.append(_histogram(layer + '/activations', activation[:_HISTOGRAM_IMAGES]))
            parts.append(tf.raw_ops.ScalarSummary(tags=layer + '/sparsity', values=tf.nn.zero_fraction(activation)))
        return tf.raw_ops.MergeSummary(inputs=parts)


def _histogram(tag, value):
    """Returns the histogram summary of a tensor; uses only every n-th value of a large tensor."""
    surplus = value.shape.num_elements() // _HISTOGRAM_VALUES if value.shape.is_fully_defined() else 1
    if surplus > 1:
        value = tf.reshape(value, [-1])[::surplus]
    # The operation would fail on a NaN, and the whole step with it, before `failures.refuse_divergence`
    # reports it.
    value = tf.where(tf.is_finite(value), value, tf.zeros_like(value))
    return tf.raw_ops.HistogramSummary(tag=tag, values=value)
