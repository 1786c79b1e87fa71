"""Moving statistics: what a network learns from its batches without gradients, such as means and variances.

A network says what they should follow; an update mode averages that over the towers and moves them.
"""
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.names import MOVING_STATISTICS
from cifar10.model.frozen import is_frozen


class MovingStatistic(NamedTuple):
    """A variable that follows a value of the tower's batch; the arguments of `add_moving_statistic`."""
    variable: tf.Variable
    value: tf.Tensor
    keep: float

    @property
    def name(self) -> str:
        """The name of the value.

        `tf.get_collection(MOVING_STATISTICS, scope)` returns only items whose `name` begins with the scope,
        and leaves out items without a name. This is how a tower finds its own statistics.
        """
        return self.value.name


def add_moving_statistic(variable: tf.Variable, value: tf.Tensor, keep: float) -> None:
    """Makes every update set a variable to keep * variable + (1 - keep) * value.

    `value` is computed from the tower's batch. The update mode averages it over the towers of the update and
    reads the variable when it applies the update, so several towers may move it at the same time. A frozen variable
    stays as it is.

    Args:
      variable: float32, made by `tf.get_variable` with trainable=False.
      value: float32, of the variable's shape.
      keep: the fraction of the variable's value that an update keeps, from 0 to 1.

    Raises:
      ValueError: an argument is not of this kind.
    """
    if is_frozen(variable):
        return
    # The identity puts the value into the name scope of the calling tower, wherever it was computed.
    value = tf.identity(value, name='statistic')
    are_float32 = value.dtype == variable.dtype.base_dtype == tf.float32
    if not are_float32 or variable.trainable or value.shape != variable.shape or not 0 <= keep <= 1:
        raise ValueError('add_moving_statistic takes a float32 variable that is not trainable, a float32 value of its '
                         'shape, and a fraction to keep from 0 to 1')
    tf.add_to_collection(MOVING_STATISTICS, MovingStatistic(variable, value, keep))
