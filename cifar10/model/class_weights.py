"""Weights of the classes in the loss, for data sets with large and small classes.

The mean weight over the training images is 1, so the loss keeps its scale, and the mean over the towers is the mean
over the batch.
"""
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError
from cifar10.settings.presets import BALANCED, parse_class_weights

_UNEVEN = 3  # ratio of the largest class to the smallest


def class_weights(text: str, counts: Mapping[str, int]) -> np.ndarray:
    """Returns the weight of each class, float32 [classes], in the order of their labels.

    Args:
      text: the flag's value: 'balanced', for equal total weights, or weights such as 'cat=2,dog=1' before scaling; the
        default weight is 1.
      counts: class name -> number of training images.

    Raises:
      UsageError: a class does not exist.
    """
    images = np.array(list(counts.values()), np.float64)
    if text == BALANCED:
        weights = 1 / images
    else:
        by_name = parse_class_weights(text)
        if unknown := by_name.keys() - counts.keys():
            raise UsageError(f"--class_weights={text}: unknown class {min(unknown)}; use {', '.join(counts)}")
        weights = np.array([by_name.get(name, 1.0) for name in counts])
    return (weights * images.sum() / (weights @ images)).astype(np.float32)


def weigh(losses: tf.Tensor, labels: tf.Tensor, weights: np.ndarray) -> tf.Tensor:
    """Returns the losses of examples times the weights of their classes, float32 [n].

    Args:
      losses: float32 [n].
      labels: int32 [n], or the fractions of the classes, float32 [n, classes].
      weights: float32 [classes].
    """
    if labels.dtype.is_integer:
        return losses * tf.gather(weights, labels)
    return losses * tf.linalg.matvec(labels, weights)


def are_uneven(counts: Sequence[int]) -> bool:
    """Returns whether the class sizes differ so much that accuracy says little about the smallest class."""
    return max(counts) >= _UNEVEN * min(counts)
