"""The moving averages of the variables, which evaluation uses."""
import collections
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

DECAY = 0.9999


def moving_averages(global_step: tf.Variable | None = None,
                    steps: tf.Tensor | None = None) -> tf.train.ExponentialMovingAverage:
    """Returns the moving averages of the classic recipe.

    Args:
      global_step: lowers the decay at the beginning, to min(0.9999, (1 + step) / (10 + step)), so that the
        averages follow faster. None where averages are only restored.
      steps: int64 scalar, how many steps a move of the averages makes up for: it has that power of the decay at
        `global_step`. None: they move in every step.
    """
    if steps is None:
        return tf.train.ExponentialMovingAverage(DECAY, global_step)
    with tf.device(global_step.device):
        step = tf.cast(global_step.read_value(), tf.float32)
        decay = tf.pow(tf.minimum(DECAY, (1 + step) / (10 + step)), tf.cast(steps, tf.float32))
    return tf.train.ExponentialMovingAverage(decay)


def move(moving: tf.train.ExponentialMovingAverage, variables: Sequence[tf.Variable]) -> tf.Operation:
    """Returns the operation that moves the averages of variables towards their values.

    An average and its arithmetic are on its variable's device: elsewhere, both would travel in every step.
    """
    by_device = collections.defaultdict(list)
    for variable in variables:
        by_device[variable.device].append(variable)
    moved = []
    for device, those in by_device.items():
        with tf.device(device):
            moved.append(moving.apply(those))
    return tf.group(moved)


def saved_names(averaged: bool) -> dict[str, tf.Variable]:
    """Returns the variables of the current graph by the names of their values in a checkpoint.

    Args:
      averaged: whether variables that have a moving average get the name of the average.
    """
    if averaged:
        return moving_averages().variables_to_restore(tf.trainable_variables())
    return {variable.op.name: variable for variable in tf.global_variables()}
