"""Learning rate schedules, as functions of the number of training examples seen.

They count examples instead of steps, so the rate at a given example does not depend on the batch size.
"""
import dataclasses

import tensorflow.compat.v1 as tf

DECAY_FACTOR = 0.1
DECAY_EPOCHS = 350


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The factor that the initial learning rate is multiplied by.

    Attributes:
      examples_per_epoch: number of training images.
      total_examples: examples of the whole run; None if its length is given in steps.
    """
    examples_per_epoch: int
    total_examples: int | None = None

    def factor(self, examples_seen: tf.Tensor) -> tf.Tensor:
        """Returns the factor, a float32 scalar, at `examples_seen`, an int64 scalar."""
        raise NotImplementedError

    def describe(self, examples_per_step: int) -> str:
        """Returns a phrase that says how the rate falls in a run with `examples_per_step` examples a step."""
        raise NotImplementedError


class Staircase(Schedule):
    """Staircase decay: x0.1 every 350 epochs, as in the classic recipe."""

    def factor(self, examples_seen):
        # The integer division counts whole periods exactly. In float32 it would not: 350 epochs of CIFAR-10
        # are more examples than float32 counts, and graph optimisation turns a division by a constant into a
        # multiplication, which may round to just below the step.
        stairs = examples_seen // (DECAY_EPOCHS * self.examples_per_epoch)
        return tf.train.exponential_decay(1.0, stairs, 1, DECAY_FACTOR)

    def describe(self, examples_per_step):
        steps = -(-DECAY_EPOCHS * self.examples_per_epoch // examples_per_step)
        return f'x{DECAY_FACTOR:g} every {DECAY_EPOCHS} epochs, which are {steps} steps'


class Linear(Schedule):
    """Linear decay to 0 at the end of the run."""

    def factor(self, examples_seen):
        remaining = tf.cast(self.total_examples - examples_seen, tf.float32) / self.total_examples
        return tf.maximum(remaining, 0.0)

    def describe(self, examples_per_step):
        del examples_per_step
        return f'linearly to 0 after {self.total_examples:,} images'
