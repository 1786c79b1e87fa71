"""Random numbers in a network, for dropout, for example: pure functions of the seed and of an example's position.

Build a network in the context of `at_position`, which gives its batch a position in the stream of examples.
"""
import contextlib
import contextvars
import itertools
from collections.abc import Iterator

import tensorflow.compat.v1 as tf

from cifar10.data.draws import philox

_PER_COUNT = 4  # random numbers per value of Philox's counter
OF_AUGMENTATIONS = 2 ** 31  # the index of an augmentation's first draw, after the draws of every network

# For the network that is being built in this thread: the arguments of `at_position`, and an iterator of draw indices.
_place: contextvars.ContextVar[tuple] = contextvars.ContextVar('place')


@contextlib.contextmanager
def at_position(seed: int, start: tf.Tensor | tf.Variable, offset: int | tf.Tensor = 0,
                first_draw: int = 1) -> Iterator[None]:
    """Context for building a network on a training batch; sets the position of its random numbers.

    Args:
      seed: seed of the run.
      start: int64 scalar, read only if the network draws random numbers.
      offset: the position of the batch's first example, relative to `start`.
      first_draw: the index of the first draw; each index has different random numbers.
    """
    token = _place.set((seed, start, offset, itertools.count(first_draw)))
    try:
        yield
    finally:
        _place.reset(token)


def current_seed() -> int | None:
    """Returns the seed of the network that is being built; None outside of `at_position`."""
    place = _place.get(None)
    return place[0] if place else None


def current_place() -> tuple[int, tf.Tensor]:
    """Returns the seed, and the position of the first example of the training batch, int64."""
    seed, start, offset, _ = _place.get()
    return seed, start + offset


def uniform_like(x: tf.Tensor) -> tf.Tensor:
    """Returns a random number for each element of a tensor, uniform in [0, 1).

    The numbers of an example depend on the run's seed, on the example's position in the stream of shuffled epochs, and
    on the number of previous calls in the network. So a run that is resumed, or moved to other devices, draws the same
    numbers, and N towers draw the same numbers as one tower with all of their examples.

    Args:
      x: [n, ...], with a row for each image of a training batch; its values do not matter.

    Returns:
      float32, of the shape of x.

    Raises:
      ValueError: the network is built for evaluation, or outside of `at_position`.
    """
    place = _place.get(None)
    if place is None:
        raise ValueError('uniform_like requires a training batch; call it only if `training` is true, and in your own '
                         'program, build the network within cifar10.model.network_draws.at_position')
    seed, start, offset, numbers = place
    size = x.shape[1:].num_elements() or tf.reduce_prod(tf.shape(x, out_type=tf.int64)[1:])
    counts = -(-size // _PER_COUNT)  # rounded up: each example starts with a new count
    shape = tf.stack([tf.shape(x, out_type=tf.int64)[0], tf.cast(counts * _PER_COUNT, tf.int64)])
    drawn = philox(shape, seed, (start + offset) * counts, next(numbers))
    return tf.reshape(drawn[:, :size], tf.shape(x))
