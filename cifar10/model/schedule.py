"""Learning rate schedules, as functions of the number of training examples.

They count examples instead of steps, so they do not depend on the batch size.
"""
import dataclasses
import math

import tensorflow.compat.v1 as tf

DECAY_FACTOR = 0.1
DECAY_EPOCHS = 350


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A factor for the initial learning rate: it rises from 0 to 1 in an optional warm-up, then it decays.

    Attributes:
      examples_per_epoch: number of training images.
      total_examples: number of examples in the whole run; None if its length is a number of steps.
      warm_up: length of the warm-up in examples.
    """
    examples_per_epoch: int
    total_examples: int | None = None
    warm_up: int = 0

    def factor(self, examples_seen: tf.Tensor) -> tf.Tensor:
        """Returns the factor, a float32 scalar, at `examples_seen`, an int64 scalar."""
        if not self.warm_up:
            return self.decay(examples_seen)
        risen = tf.cast(examples_seen, tf.float32) / self.warm_up
        return tf.where_v2(examples_seen < self.warm_up, risen, self.decay(examples_seen - self.warm_up))

    def describe(self, examples_per_step: int, examples: int) -> str:
        """Describes the rate in a run with `examples` examples, such as 'linearly to 0 after 50,000 images'."""
        rising = f'rising from 0 over {self.warm_up:,} images, then ' if self.warm_up else ''
        return rising + self.describe_decay(examples_per_step, examples)

    def decay(self, examples: tf.Tensor) -> tf.Tensor:
        """Returns the factor after `examples` examples since the warm-up, a float32 scalar; it starts at 1."""
        raise NotImplementedError

    def describe_decay(self, examples_per_step: int, examples: int) -> str:
        """Describes the decay of the rate, for `describe`."""
        raise NotImplementedError

    def _fraction_left(self, examples):
        if self.total_examples is None:
            raise ValueError('this schedule needs the length of the run in examples')
        length = self.total_examples - self.warm_up
        return tf.maximum(tf.cast(length - examples, tf.float32) / length, 0.0)


class Staircase(Schedule):
    """Staircase decay: x0.1 every 350 epochs, as in the classic recipe."""

    def decay(self, examples):
        # The integer division is exact. In float32 it would not be: 350 epochs of CIFAR-10 have more examples than
        # float32 can count, and graph optimisation replaces a division by a constant with a multiplication, which may
        # round to just below a whole number.
        stairs = examples // (DECAY_EPOCHS * self.examples_per_epoch)
        return tf.train.exponential_decay(1.0, stairs, 1, DECAY_FACTOR)

    def describe_decay(self, examples_per_step, examples):
        period = DECAY_EPOCHS * self.examples_per_epoch
        steps = -(-period // examples_per_step)
        constant = 'constant; in a longer run ' if examples <= self.warm_up + period else ''
        return f'{constant}x{DECAY_FACTOR:g} every {DECAY_EPOCHS} epochs ({steps:,} steps)'


class Linear(Schedule):
    """Linear decay to 0 at the end of the run."""

    def decay(self, examples):
        return self._fraction_left(examples)

    def describe_decay(self, examples_per_step, examples):
        del examples_per_step, examples
        return f'linearly to 0 after {self.total_examples:,} images'


class Cosine(Schedule):
    """Cosine decay to 0 at the end of the run (Loshchilov and Hutter 2017, without restarts)."""

    def decay(self, examples):
        return 0.5 - 0.5 * tf.cos(math.pi * self._fraction_left(examples))

    def describe_decay(self, examples_per_step, examples):
        del examples_per_step, examples
        return f'by a cosine to 0 after {self.total_examples:,} images'
