"""The moving averages of the variables, which evaluation uses."""
import tensorflow.compat.v1 as tf

DECAY = 0.9999


def moving_averages(global_step: tf.Variable | None = None) -> tf.train.ExponentialMovingAverage:
    """Returns the moving averages of the classic recipe.

    Args:
      global_step: lowers the decay at the beginning, to min(0.9999, (1 + step) / (10 + step)), so that the
        averages follow faster. None where averages are only restored.
    """
    return tf.train.ExponentialMovingAverage(DECAY, global_step)


def saved_names(averaged: bool) -> dict[str, tf.Variable]:
    """Returns the variables of the current graph by the names of their values in a checkpoint.

    Args:
      averaged: whether variables that have a moving average get the name of the average.
    """
    if averaged:
        return moving_averages().variables_to_restore()
    return {variable.op.name: variable for variable in tf.global_variables()}
