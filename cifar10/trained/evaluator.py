"""The evaluation graph: predictions for a data set, with every example counted once.

It reads no checkpoint; the caller sets the variables.
"""
import multiprocessing.pool
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.data import pipeline, records
from cifar10.data.shift import average, views
from cifar10.networks import classifier
from cifar10.parallel.towers import build_towers
from cifar10.recipe import Recipe


class Result(NamedTuple):
    """What one pass over the examples found.

    Attributes:
      confusion: int64 [classes, classes], how many examples of each class (row) were taken for each (column).
      cross_entropy: the mean.
      averaged: how many are right with test-time averaging; None without it.
    """
    confusion: np.ndarray
    cross_entropy: float
    averaged: int | None = None

    @property
    def count(self) -> int:
        """The number of examples."""
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        """How many of them are right."""
        return int(self.confusion.trace())

    @property
    def precision(self) -> float:
        """The fraction that is right."""
        return self.correct / self.count

    @property
    def averaged_precision(self) -> float | None:
        """The fraction that is right with test-time averaging; None without it."""
        return None if self.averaged is None else self.averaged / self.count

    @property
    def figures(self) -> dict[str, float]:
        """The figures as a record has them."""
        found = dict(precision=self.precision, cross_entropy=self.cross_entropy, correct=self.correct,
                     examples=self.count)
        return found if self.averaged is None else dict(found, averaged_precision=self.averaged_precision)

    def __str__(self):
        also = '' if self.averaged is None else f', {self.averaged_precision:.3f} with test-time averaging'
        return f'precision @ 1 = {self.precision:.3f} ({self.correct} of {self.count}){also}'


class Evaluator:
    """The evaluation graph, built in the current default graph; the batches are shared out among devices.

    Args:
      data: the images.
      recipe: of the run.
      devices: names of the devices that compute the network.
      batch_size: images in a batch; the result does not depend on it.
      num_examples: how many; None: all.
      averaging: whether to average the predictions for several views of an image, too.

    Attributes:
      read: the operation that reads the data; once a session.
    """

    def __init__(self, data: records.Records, recipe: Recipe, devices: Sequence[str], batch_size: int,
                 num_examples: int | None = None, averaging: bool = False):
        self._count = num_examples or data.count
        with tf.device('/cpu:0'), tf.name_scope('input'):
            memory, self.read = pipeline.load(data)
            inputs = [pipeline.eval_batches(memory, recipe.augmentation, self._count, batch_size, k, len(devices))
                      for k in range(len(devices))]
        batches = [len(range(k * batch_size, self._count, len(devices) * batch_size)) for k in range(len(devices))]

        def tower(k, scope):
            del scope
            with tf.device('/cpu:0'):
                images, labels = inputs[k][0].get_next()
            return _results(recipe, images, labels, devices[k], len(data.classes), averaging)
        found = build_towers(devices, tower)
        self._shares = [(start, each, count) for (_, start), each, count in zip(inputs, found, batches)]

    @property
    def fetched(self) -> list[tf.Tensor]:
        """The tensors that a pass over the examples runs."""
        return [tensor for _, found, _ in self._shares for tensor in found]

    def run(self, session: tf.Session) -> Result:
        """Makes one pass over the examples."""
        session.run([start for start, _, _ in self._shares])
        with multiprocessing.pool.ThreadPool(len(self._shares)) as pool:
            shares = pool.map(lambda share: [session.run(share[1]) for _ in range(share[2])], self._shares)
        # In the same order whichever device was faster, so that the sum rounds alike.
        confusion, cross_entropy, *averaged = map(sum, zip(*(batch for share in shares for batch in share)))
        return Result(confusion, float(cross_entropy) / self._count, *map(int, averaged))


def _results(recipe, images, labels, device, num_classes, averaging):
    """Returns what a batch adds to a Result, a few numbers whatever its size."""
    logits = recipe.inference(views(images) if averaging else images, [device])
    plain = logits[:tf.shape(labels)[0]]
    found = [tf.math.confusion_matrix(labels, tf.argmax(plain, 1), num_classes, dtype=tf.int64),
             tf.reduce_sum(tf.cast(classifier.cross_entropies(plain, labels), tf.float64))]
    if averaging:
        found.append(tf.reduce_sum(tf.cast(classifier.correct(average(logits), labels), tf.int64)))
    return found
