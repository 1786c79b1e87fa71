"""The networks, one file each.

A network is a function of its images. It knows no tower and no update mode: where its variables live is
decided around it.
"""
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

NUM_CLASSES = 10  # of CIFAR-10

# The name of the graph's collection of MovingStatistics.
MOVING_STATISTICS = 'moving_statistics'


class Network(NamedTuple):
    """A network.

    Attributes:
      inference: function (images, devices, training, num_classes, **options) -> logits, float32 [n, num_classes]. It
        makes its variables with `tf.get_variable`, adds its L2 losses to the collection LOSSES, its layers' outputs
        to ACTIVATIONS and what it learns without gradients to MOVING_STATISTICS. `devices` names the devices that
        share its work; `training` is whether the images are a training batch.
      parts: into how many parts it can be divided, each on a device of its own.
      image_size: the only height and width that it takes, or None if it takes any.
      learn: function that computes options of `inference` from training images, float32 [n, height, width, 3] as
        the network sees them, once in a run at its start; or None.
      check: function (inference with its options bound, batch size, image sizes, type of the images, seed) that raises
        a UsageError if the network breaks a rule, before it is trained; None for the built-in networks.
    """
    inference: Callable
    parts: int = 1
    image_size: int | None = None
    learn: Callable[[np.ndarray], Mapping[str, Any]] | None = None
    check: Callable[..., None] | None = None


class MovingStatistic(NamedTuple):
    """A change that a tower's batch makes to a variable that is not trained.

    Attributes:
      change: float32, to be added to the variable.
      variable: the variable.
    """
    change: tf.Tensor
    variable: tf.Variable

    @property
    def name(self) -> str:
        """The name by whose scope `tf.get_collection` finds a tower's."""
        return self.change.name
