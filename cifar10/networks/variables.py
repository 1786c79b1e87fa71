"""How networks make their variables: drawn from (seed, name), read once."""
import zlib
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf


def read(name: str, shape: Sequence, initializer: Callable) -> tf.Tensor:
    """Makes a variable in the current scope, or gets the one that is there; returns its value, for all uses."""
    # Read once: each read of a variable on the CPU is a copy to the tower's device.
    return tf.convert_to_tensor(tf.get_variable(name, shape, initializer=initializer))


def seed_of(name: str) -> tuple:
    """Returns the seed of a variable in the current scope, for a stateless random operation.

    Drawn so, another operation elsewhere in the graph changes nothing, and a network's layers differ though they
    share the graph's seed.
    """
    return tf.get_seed(zlib.crc32(f'{tf.get_variable_scope().name}/{name}'.encode()))
