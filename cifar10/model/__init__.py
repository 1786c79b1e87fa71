"""The networks: `classic`, `fast` and `photos`, which the registry names; a user's own are in the room `own`.

`layers` has what networks share, `untrained_variables` moving statistics and frozen variables. `classifier` has the
loss and the accuracy, `parts` divides networks, and `network_draws` has their random numbers. A network is a function
of its images: its caller decides where variables and parts are placed.

A user's own network imports its building blocks from here: `from cifar10.model import batch_normalisation`.
"""
import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

NUM_CLASSES = 10  # of CIFAR-10

# What users import from here -> the module that has it, which is imported when it is used.
_FOR_NETWORKS = dict(add_moving_statistic='untrained_variables', batch_normalisation='layers', dropout='layers',
                     is_frozen='untrained_variables', uniform_like='network_draws')


def __getattr__(name):
    if name not in _FOR_NETWORKS:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{_FOR_NETWORKS[name]}'), name)


class Network(NamedTuple):
    """A network, as the registry has it.

    Attributes:
      inference: function (images, training, num_classes, **options) -> logits, float32 of shape
        [n, num_classes]. It makes its variables with `tf.get_variable`. It adds its L2 losses to the
        collection LOSSES, its layers' outputs to ACTIVATIONS, and calls `add_moving_statistic` for what it
        learns without gradients, and `parts.next_part` where it can be cut. `training` is whether the images
        are a training batch.
      image_sizes: the heights and widths that it takes. None if they are not known before it is built.
      learn: function that computes options of `inference` at the start of a run, from training images
        preprocessed as for the network, float32 [n, height, width, 3]. None if it has none to compute.
      model: of a whole model, function (features, labels, mode) -> an EstimatorSpec; then there is no `inference`.
    """
    inference: Callable | None
    image_sizes: range | None = None
    learn: Callable[[np.ndarray], Mapping[str, Any]] | None = None
    model: Callable | None = None
