"""Weights of the classes in the loss, for data sets in which some classes have far fewer images than others.

Their mean over the training images is 1, so the loss keeps its scale, and the mean over the towers is that over the
batch.
"""
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError
from cifar10.settings.presets import BALANCED, parse_class_weights

_UNEVEN = 3  # times as many images as the smallest class


def class_weights(text: str, counts: Mapping[str, int]) -> np.ndarray:
    """Returns the weight of each class, float32 [classes], in the order of their labels.

    Args:
      text: as the flag has it: 'balanced', by which all classes weigh alike, or 'cat=2,dog=1', where other classes have
        the weight 1 before all are scaled.
      counts: the training images of each class, by its name.

    Raises:
      UsageError: there is no class of a name.
    """
    images = np.array(list(counts.values()), np.float64)
    if text == BALANCED:
        weights = 1 / images
    else:
        given = parse_class_weights(text)
        if unknown := given.keys() - counts.keys():
            raise UsageError(f'--class_weights={text}: there is no class {min(unknown)}; the classes are '
                             f"{', '.join(counts)}")
        weights = np.array([given.get(name, 1.0) for name in counts])
    return (weights * images.sum() / (weights @ images)).astype(np.float32)


def weigh(losses: tf.Tensor, labels: tf.Tensor, weights: np.ndarray) -> tf.Tensor:
    """Returns the losses of examples times the weights of their classes, float32 [n].

    Args:
      losses: float32 [n].
      labels: int32 [n], or float32 [n, classes], the fraction of each class.
      weights: float32 [classes].
    """
    if labels.dtype.is_integer:
        return losses * tf.gather(weights, labels)
    return losses * tf.linalg.matvec(labels, weights)


def are_uneven(counts: Sequence[int]) -> bool:
    """Returns whether the largest class has so many more images than the smallest that accuracy tells little of it."""
    return max(counts) >= _UNEVEN * min(counts)
