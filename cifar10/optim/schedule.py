"""Schedules: how the learning rate falls, as a function of the examples that were seen.

They count examples, not steps, so that a run with another batch size has the same rate at the same example.
"""
import dataclasses

import tensorflow.compat.v1 as tf

DECAY_FACTOR = 0.1
DECAY_EPOCHS = 350


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The factor that the initial learning rate is multiplied by.

    Attributes:
      examples_per_epoch: examples in the training data.
      total_examples: examples of the whole run, or None if it has no end that the rate follows.
    """
    examples_per_epoch: int
    total_examples: int | None = None

    def factor(self, examples_seen: tf.Tensor) -> tf.Tensor:
        """Returns the factor, a float32 scalar, at `examples_seen`, an int64 scalar."""
        raise NotImplementedError

    def describe(self, examples_per_step: int) -> str:
        """Returns how the rate falls in a run with so many examples in a step, as a phrase."""
        raise NotImplementedError


class Staircase(Schedule):
    """The classic recipe's: x0.1 every 350 epochs."""

    def factor(self, examples_seen):
        # Whole periods, divided as integers: 350 epochs of CIFAR-10 are more examples than float32 counts, and
        # graph optimisation turns a division by a constant into a product that may fall short of the stair.
        stairs = examples_seen // (DECAY_EPOCHS * self.examples_per_epoch)
        return tf.train.exponential_decay(1.0, stairs, 1, DECAY_FACTOR)

    def describe(self, examples_per_step):
        steps = -(-DECAY_EPOCHS * self.examples_per_epoch // examples_per_step)
        return f'x{DECAY_FACTOR:g} every {DECAY_EPOCHS} epochs, which are {steps} steps'


class Linear(Schedule):
    """Falls linearly to 0 at the end of the run."""

    def factor(self, examples_seen):
        left = tf.cast(self.total_examples - examples_seen, tf.float32) / self.total_examples
        return tf.maximum(left, 0.0)

    def describe(self, examples_per_step):
        del examples_per_step
        return f'linearly to 0 after {self.total_examples:,} images'
