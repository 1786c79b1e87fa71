"""Variables without gradients: frozen variables and moving statistics."""
import contextlib
import contextvars
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import MOVING_STATISTICS, primary_name

_frozen: contextvars.ContextVar[str | None] = contextvars.ContextVar('frozen', default=None)


@contextlib.contextmanager
def freezing(pattern: str | None) -> Iterator[None]:
    """Context in which new variables are frozen if their names match a pattern.

    Args:
      pattern: regular expression to search for in the names; None: no variable is frozen.
    """
    token = _frozen.set(pattern)
    try:
        with tf.variable_creator_scope(create_frozen):
            yield
    finally:
        _frozen.reset(token)


def create_frozen(next_creator: Callable, **arguments) -> tf.Variable:
    """Creator for `tf.variable_creator_scope` that makes frozen variables untrainable."""
    name = arguments.get('name')  # a tf.Variable may have no name; other code refuses it
    if name and _is_frozen_name(name):
        arguments['trainable'] = False
    return next_creator(**arguments)


def is_frozen(variable: tf.Variable) -> bool:
    """Returns whether a variable is frozen in the current `freezing` context."""
    return _is_frozen_name(variable.name.split(':')[0])


def _is_frozen_name(name):
    pattern = _frozen.get()
    return pattern is not None and re.search(pattern, primary_name(name)) is not None


class MovingStatistic(NamedTuple):
    """A variable that follows a value of the tower's batch; see `add_moving_statistic`.

    Attributes:
      variable: an untrained variable.
      value: of the variable's shape; float32, or integers, which are the same in all towers.
      keep: the fraction of the variable's value that an update keeps. None: the value is an amount to add, which the
        tower computed from its own read of the variable, as `tf.layers` does; in `async` this read may be stale.
    """
    variable: tf.Variable
    value: tf.Tensor
    keep: float | None

    @property
    def name(self) -> str:
        """The name of the value.

        `tf.get_collection(MOVING_STATISTICS, scope)` matches `name` with the scope, so a tower finds its own
        statistics.
        """
        return self.value.name


def add_moving_statistic(variable: tf.Variable, value: tf.Tensor, keep: float) -> None:
    """Makes every update set a variable to keep * variable + (1 - keep) * value.

    `value` is computed from the tower's batch. The update mode averages it over the towers of the update and
    reads the variable when it applies the update, so several towers may move it at the same time. A frozen variable
    does not change.

    Args:
      variable: float32, created by `tf.get_variable` with trainable=False.
      value: float32, of the variable's shape.
      keep: the fraction of the variable's value that an update keeps, from 0 to 1.

    Raises:
      ValueError: an argument does not meet these conditions.
    """
    value = tf.convert_to_tensor(value)
    are_float32 = value.dtype == variable.dtype.base_dtype == tf.float32
    if not are_float32 or variable.trainable or value.shape != variable.shape or not 0 <= keep <= 1:
        raise ValueError('add_moving_statistic requires a float32 variable with trainable=False, a float32 value of '
                         'its shape, and a fraction to keep from 0 to 1')
    _add(variable, value, keep)


def add_assignment(variable: tf.Variable, value: tf.Tensor, is_change: bool) -> None:
    """Makes every update assign a value to a variable, or add it; see `add_moving_statistic`.

    Args:
      variable: of any numeric type, created by `tf.get_variable` with trainable=False.
      value: of the variable's type; integers must be the same in all towers, and are not averaged.
      is_change: whether the value is added.
    """
    value = tf.broadcast_to(value, variable.shape)
    _add(variable, tf.cast(value, tf.float32) if value.dtype.is_floating else value, None if is_change else 0)


def _add(variable, value, keep):
    if not is_frozen(variable):
        # The identity puts the value into the name scope of the calling tower.
        tf.add_to_collection(MOVING_STATISTICS, MovingStatistic(variable, tf.identity(value, name='statistic'), keep))
