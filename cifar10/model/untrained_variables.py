"""Variables that gradients do not train: frozen ones, and those that follow a statistic of each tower's batch."""
import contextlib
import contextvars
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import MOVING_STATISTICS, primary_name

_frozen = contextvars.ContextVar('frozen', default=None)


@contextlib.contextmanager
def freezing(pattern: str | None) -> Iterator[None]:
    """Context in which a network is built some of whose variables are frozen.

    Args:
      pattern: regular expression that is searched for in the variables' names; None: no variable is frozen.
    """
    token = _frozen.set(pattern)
    try:
        with tf.variable_creator_scope(create_frozen):
            yield
    finally:
        _frozen.reset(token)


def create_frozen(next_creator: Callable, **arguments) -> tf.Variable:
    """Makes a variable, as `tf.variable_creator_scope` wants it; one that is frozen is not trained."""
    name = arguments.get('name')  # a tf.Variable may have none; it is refused elsewhere
    if name and _is_frozen_name(name):
        arguments['trainable'] = False
    return next_creator(**arguments)


def is_frozen(variable: tf.Variable) -> bool:
    """Returns whether a variable of the network that is being built is frozen."""
    return _is_frozen_name(variable.name.split(':')[0])


def _is_frozen_name(name):
    pattern = _frozen.get()
    return pattern is not None and re.search(pattern, primary_name(name)) is not None


class MovingStatistic(NamedTuple):
    """A variable that follows a value of the tower's batch; see `add_moving_statistic`.

    Attributes:
      variable: is not trained.
      value: of its shape; float32, or integers, which are the same in all towers.
      keep: the fraction of the variable's value that an update keeps. None: the value is an amount to add, which the
        tower has computed from the variable as it was then, as `tf.layers` does; in `async` that may be stale.
    """
    variable: tf.Variable
    value: tf.Tensor
    keep: float | None

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
    value = tf.convert_to_tensor(value)
    are_float32 = value.dtype == variable.dtype.base_dtype == tf.float32
    if not are_float32 or variable.trainable or value.shape != variable.shape or not 0 <= keep <= 1:
        raise ValueError('add_moving_statistic takes a float32 variable that is not trainable, a float32 value of its '
                         'shape, and a fraction to keep from 0 to 1')
    _add(variable, value, keep)


def add_assignment(variable: tf.Variable, value: tf.Tensor, is_change: bool) -> None:
    """Makes every update set a variable to a value, or add it, as `add_moving_statistic` does.

    Args:
      variable: of any numbers, made by `tf.get_variable` with trainable=False.
      value: of the variable's type; integers must be the same in all towers, and are not averaged.
      is_change: whether the value is added.
    """
    value = tf.broadcast_to(value, variable.shape)
    _add(variable, tf.cast(value, tf.float32) if value.dtype.is_floating else value, None if is_change else 0)


def _add(variable, value, keep):
    if not is_frozen(variable):
        # The identity puts the value into the name scope of the calling tower, wherever it was computed.
        tf.add_to_collection(MOVING_STATISTICS, MovingStatistic(variable, tf.identity(value, name='statistic'), keep))
