"""Random numbers in a network, such as those of dropout: pure functions of the seed and of an example's position.

Build a network within `at_position(...)`, which gives its batch a position in the stream of examples.
"""
import contextlib
import contextvars
import itertools
from collections.abc import Iterator

import tensorflow.compat.v1 as tf

from cifar10.data.draws import philox

_PER_COUNT = 4  # numbers that Philox makes of one value of its counter
OF_AUGMENTATIONS = 2 ** 31  # the number of the first draw of an augmentation, after those of all networks

# In each thread, for the network that is being built: the arguments of `at_position`, and the numbers of its draws to
# come.
_place = contextvars.ContextVar('place', default=None)


@contextlib.contextmanager
def at_position(seed: int, start: tf.Tensor | tf.Variable, offset: int | tf.Tensor = 0,
                first_draw: int = 1) -> Iterator[None]:
    """Context in which a network is built on a training batch, for what it draws.

    Args:
      seed: seed of the run.
      start: int64 scalar, read only if the network draws.
      offset: how far from `start` the first example of the batch is; the others follow it.
      first_draw: the number of the first draw; others have other random numbers.
    """
    token = _place.set((seed, start, offset, itertools.count(first_draw)))
    try:
        yield
    finally:
        _place.reset(token)


def current_seed() -> int | None:
    """Returns the seed of the draws of the network that is being built; None if no training batch is known."""
    place = _place.get()
    return place and place[0]


def current_position() -> tf.Tensor:
    """Returns the position of the first example of the training batch, int64."""
    _, start, offset, _ = _place.get()
    return start + offset


def uniform_like(x: tf.Tensor) -> tf.Tensor:
    """Returns a random number for each element of a tensor, uniform in [0, 1).

    The numbers of an example depend on the seed of the run, on the position of the example in the stream of shuffled
    epochs, and on how many calls the network has made before. So a run that is resumed, or moved to other devices,
    draws the same numbers, and N towers draw those of one tower with all of their examples.

    Args:
      x: [n, ...], with a row for each image of a training batch; its values do not matter.

    Returns:
      float32, of the shape of x.

    Raises:
      ValueError: no training batch is known: the network is built for evaluation, or outside of `at_position`.
    """
    place = _place.get()
    if place is None:
        raise ValueError('random numbers are drawn for a training batch; draw them only where `training` is true, and '
                         'in a program of your own build the network within cifar10.model.network_draws.at_position')
    seed, start, offset, numbers = place
    size = x.shape[1:].num_elements() or tf.reduce_prod(tf.shape(x, out_type=tf.int64)[1:])
    counts = -(-size // _PER_COUNT)  # an example takes whole counts, so that it begins with one
    shape = tf.stack([tf.shape(x, out_type=tf.int64)[0], tf.cast(counts * _PER_COUNT, tf.int64)])
    drawn = philox(shape, seed, (start + offset) * counts, next(numbers))
    return tf.reshape(drawn[:, :size], tf.shape(x))
