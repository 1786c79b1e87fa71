"""The built-in networks `classic`, `fast` and `photos`; the room `own` runs users' networks.

`layers` has shared layers, `untrained_variables` moving statistics and frozen variables. `classifier` has the loss and
the accuracy, `parts` divides networks, and `network_draws` has their random numbers. A network is a function of its
images: its caller places variables and parts.

Users' networks import their building blocks from here: `from cifar10.model import batch_normalisation`.
"""
import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

NUM_CLASSES = 10  # of CIFAR-10

# Names for users' networks -> modules, which are imported on first use.
_FOR_NETWORKS = dict(add_moving_statistic='untrained_variables', batch_normalisation='layers', dropout='layers',
                     is_frozen='untrained_variables', uniform_like='network_draws')


def __getattr__(name):
    if name not in _FOR_NETWORKS:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{_FOR_NETWORKS[name]}'), name)


class Network(NamedTuple):
    """A network in the registry.

    Attributes:
      inference: function (images, training, num_classes, **options) -> logits, float32 of shape
        [n, num_classes]. It creates its variables with `tf.get_variable`, and adds its L2 losses to the collection
        LOSSES and its layers' outputs to ACTIVATIONS. It calls `add_moving_statistic` for variables that follow the
        batches without gradients, and `parts.next_part` between its parts. `training` is whether the images are a
        training batch.
      image_sizes: the heights and widths that the network accepts. None if they are unknown before it is built.
      learn: function that computes options of `inference` at the start of a run, from preprocessed training images,
        float32 [n, height, width, 3]. None if there are no such options.
      model: function (features, labels, mode) -> EstimatorSpec, for a whole model, which has no `inference`.
    """
    inference: Callable | None
    image_sizes: range | None = None
    learn: Callable[[np.ndarray], Mapping[str, Any]] | None = None
    model: Callable | None = None
