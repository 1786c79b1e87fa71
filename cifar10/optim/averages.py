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
