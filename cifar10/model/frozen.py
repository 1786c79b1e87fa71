"""Frozen variables, which training leaves as they are. The caller of a network chooses them by their names.

A frozen variable is not trainable, so whoever asks for the variables to train does not get it, and the moving
statistics that the network adds for it are left out.
"""
import contextlib
import contextvars
import re
from collections.abc import Iterator

import tensorflow.compat.v1 as tf

_is_frozen_name = contextvars.ContextVar('is_frozen_name', default=lambda name: False)


@contextlib.contextmanager
def freezing(pattern: str | None) -> Iterator[None]:
    """Context in which a network is built some of whose variables are frozen.

    Args:
      pattern: regular expression that is searched for in the variables' names, relative to the scope of the caller;
        None: no variable is frozen.
    """
    scope = tf.get_variable_scope().name

    def is_frozen_name(name):
        return pattern is not None and re.search(pattern, name.removeprefix(f'{scope}/')) is not None

    def creator(next_creator, **arguments):
        name = arguments.get('name')  # a tf.Variable may have none; it is refused elsewhere
        if name and is_frozen_name(name):
            arguments['trainable'] = False
        return next_creator(**arguments)

    token = _is_frozen_name.set(is_frozen_name)
    try:
        with tf.variable_creator_scope(creator):
            yield
    finally:
        _is_frozen_name.reset(token)


def is_frozen(variable: tf.Variable) -> bool:
    """Returns whether a variable of the network that is being built is frozen."""
    return _is_frozen_name.get()(variable.name.split(':')[0])
