"""The networks: `classic`, `fast`, and a user's own (`own`, which `rehearsal` checks).

`layers` holds what they share, `classifier` the loss of all, `parts` what divides them. A network is a function of its
images. It knows no towers, no devices and no update modes: its caller decides where variables and parts are placed.
"""
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

NUM_CLASSES = 10  # of CIFAR-10

# The graph collection of MovingStatistics.
MOVING_STATISTICS = 'moving_statistics'


class Network(NamedTuple):
    """A network, as the registry has it.

    Attributes:
      inference: function (images, training, num_classes, **options) -> logits, float32 of shape
        [n, num_classes]. It makes its variables with `tf.get_variable`. It adds its L2 losses to the
        collection LOSSES, its layers' outputs to ACTIVATIONS, and calls `add_moving_statistic` for what it
        learns without gradients, and `parts.next_part` where it can be cut. `training` is whether the images
        are a training batch.
      image_size: the only height and width that it takes, or None if it takes any.
      learn: function that computes options of `inference` at the start of a run, from training images
        preprocessed as for the network, float32 [n, height, width, 3]. None if it has none to compute.
      check: function (inference with its options bound, batch size, image sizes, dtype of the images, seed)
        that raises a UsageError if the network breaks a rule, before it is trained. None where no check is
        needed.
    """
    inference: Callable
    image_size: int | None = None
    learn: Callable[[np.ndarray], Mapping[str, Any]] | None = None
    check: Callable[..., None] | None = None


class MovingStatistic(NamedTuple):
    """A variable that follows a value of the tower's batch; the arguments of `add_moving_statistic`."""
    variable: tf.Variable
    value: tf.Tensor
    keep: float

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
    reads the variable when it applies the update, so several towers may move it at the same time.

    Args:
      variable: float32, made by `tf.get_variable` with trainable=False.
      value: float32, of the variable's shape.
      keep: the fraction of the variable's value that an update keeps, from 0 to 1.
    """
    # The identity puts the value into the name scope of the calling tower, wherever it was computed.
    tf.add_to_collection(MOVING_STATISTICS, MovingStatistic(variable, tf.identity(value, name='statistic'), keep))
