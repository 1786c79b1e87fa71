"""The moving averages of the variables, which evaluation uses."""

import tensorflow.compat.v1 as tf

DECAY = 0.9999


def moving_averages(global_step: tf.Variable | None = None) -> tf.train.ExponentialMovingAverage:
    """Returns the moving averages of the classic recipe.

    Args:
      global_step: makes the averages follow faster in the beginning; the decay is
        min(0.9999, (1 + step) / (10 + step)). None where averages are only restored.
    """
    return tf.train.ExponentialMovingAverage(DECAY, global_step)


def saved_names(averaged: bool) -> dict[str, tf.Variable]:
    """Returns the variables of the current graph by the names under which a checkpoint has their values.

    Args:
      averaged: whether those are the names of the moving averages, where a variable has one.
    """
    if averaged:
        return moving_averages().variables_to_restore()
    return {variable.op.name: variable for variable in tf.global_variables()}
