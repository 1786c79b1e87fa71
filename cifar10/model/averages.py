"""The moving averages of the variables, for evaluation."""
from collections.abc import Collection, Iterable, Sequence

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import AVERAGE

DECAY = 0.9999


class MovingAverages:
    """The moving averages of the classic recipe, each on the device of its variable.

    The decay is min(0.9999, (1 + step) / (10 + step)), so the averages follow faster at the beginning.

    Args:
      variables: the variables, float; the initial value of an average is the value of its variable.
      global_step: the number of steps, int64.
      steps: int64 scalar, number of steps since the last move; a move uses that power of the decay at `global_step`.
        None: the averages move in every step.
    """

    def __init__(self, variables: Sequence[tf.Variable], global_step: tf.Variable, steps: tf.Tensor | None = None):
        distinct = {variable.op.name: variable for variable in variables}.values()
        self._averages = [(variable, _average(variable)) for variable in distinct]
        self._global_step = global_step
        self._steps = steps

    def move(self) -> tf.Operation:
        """Returns an operation that moves the averages towards the values of the variables."""
        rates, moved = {}, []  # one rate per device, so only the step travels
        for variable, average in self._averages:
            with tf.device(variable.device):
                if variable.device not in rates:
                    rates[variable.device] = 1 - self._decay()
                moved.append(tf.raw_ops.ResourceApplyGradientDescent(
                    var=average.handle, alpha=tf.cast(rates[variable.device], average.dtype.base_dtype),
                    delta=average.read_value() - variable.read_value()))
        return tf.group(moved)

    def _decay(self):
        step = tf.cast(self._global_step.read_value(), tf.float32)
        decay = tf.minimum(DECAY, (1 + step) / (10 + step))
        return decay if self._steps is None else tf.pow(decay, tf.cast(self._steps, tf.float32))


def _average(variable):
    with tf.device(variable.device), tf.name_scope('initialise/'):
        with tf.control_dependencies([variable.initializer]):
            initial = variable.read_value()
        return tf.get_variable(variable.op.name + AVERAGE, initializer=initial, trainable=False,
                               validate_shape=variable.shape.is_fully_defined())


def saved_names(names: Iterable[str], saved: Collection[str], averaged: bool) -> dict[str, str]:
    """Maps the names of variables to names in a checkpoint.

    Args:
      saved: all names in the checkpoint.
      averaged: whether variables get their moving averages; untrained variables have no average.
    """
    return {name: name + AVERAGE if averaged and name + AVERAGE in saved else name for name in names}
