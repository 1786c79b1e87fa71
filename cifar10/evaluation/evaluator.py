"""Builds the evaluation graph, which predicts a data set and counts every example once.

It reads no checkpoint; the caller sets the variables.
"""
import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base.activity import moved
from cifar10.data import datasets
from cifar10.data.images import eval_batches, loaded
from cifar10.evaluation import confusion
from cifar10.evaluation.result import EvalResult, Prediction
from cifar10.evaluation.views import average, views
from cifar10.model import classifier
from cifar10.model.recipe import Recipe
from cifar10.parallel.towers import build_towers

_MOST_SHOWN = 16  # images of an evaluation


def filled(images: tf.Tensor, count: int) -> tf.Tensor:
    """Pads a batch with its last image up to `count` images, so that the graph knows their number.

    TensorFlow 1 networks use that number, as in `tf.reshape(x, [images.shape[0], -1])`. The result has at least two
    images, so that `tf.squeeze(x)` keeps the batch axis. Black padding could become NaN if each image is scaled.
    Images are [n, height, width, 3], with n > 0; the result is [max(count, 2), height, width, 3].
    """
    return tf.gather(images, tf.minimum(tf.range(max(count, 2)), tf.shape(images)[0] - 1))


class Evaluator:
    """The evaluation graph, built in the current default graph. The devices take the batches in turn.

    Args:
      batch_size: images in a batch; the result does not depend on it.
      num_examples: the number of images to evaluate; None for all.
      averaging: whether to also average the predictions for several views of an image.
      classes: the names of the network's classes, a superset of the data's classes; None if both are equal.

    Attributes:
      read: the operation that reads the data; run it once per session.
    """

    def __init__(self, data: datasets.ImageFiles, recipe: Recipe, devices: Sequence[str], batch_size: int,
                 num_examples: int | None = None, averaging: bool = False, classes: Sequence[str] | None = None):
        self._count = num_examples or data.count
        batch_size = min(batch_size, self._count)
        self._name_of = data.name_of
        self._classes = classes = tuple(classes or data.classes)
        with tf.device('/cpu:0'), tf.name_scope('input'):
            memory = loaded(data)
            self.read = memory.read
            inputs = [eval_batches(memory, recipe.augmentation, self._count, batch_size, k, len(devices))
                      for k in range(len(devices))]

        def tower(k, scope):
            del scope
            batches, start = inputs[k]
            with tf.device('/cpu:0'):
                images, labels = batches.get_next()
                if classes != data.classes:
                    labels = tf.gather([classes.index(name) for name in data.classes], labels)
            found = _of_batch(recipe, images, labels, batch_size, len(classes), averaging)
            # The first examples of batch k, and of every len(devices)-th after it.
            return start, found, range(k * batch_size, self._count, len(devices) * batch_size)
        # For each device: the operation that rewinds its batches, the results of the next batch, and the first
        # example of each batch.
        self._shares = build_towers(devices, tower)

    def run(self, session: tf.Session, step: int, checkpoint: str | None = None) -> EvalResult:
        """Makes one pass over the examples; `step` and `checkpoint` describe the loaded model."""
        session.run([start for start, _, _ in self._shares])

        is_ended = threading.Event()  # by an error or an interrupt

        def run_share(share):
            _, found, firsts = share
            all_sums, largest = [], list[Any]()
            for first in firsts:
                if is_ended.is_set():
                    break
                sums, columns = session.run(found)
                moved()
                all_sums.append(sums)
                largest = _largest([*largest, *_predictions(first, **columns)])
            return all_sums, largest
        # Not a pool of multiprocessing, which needs shared memory: a container may have none to write to.
        with ThreadPoolExecutor(len(self._shares)) as pool:
            try:
                shares = list(pool.map(run_share, self._shares))
            except BaseException:
                is_ended.set()
                raise
        # Summed device by device, whichever was faster, so that floating-point sums round the same in every pass.
        all_sums = [sums for share_sums, _ in shares for sums in share_sums]
        totals = {name: sum(sums[name] for sums in all_sums) for name in all_sums[0]}
        matrix = totals['confusion']
        if not matrix[:, -1].any():
            matrix = matrix[:, :-1]
        figures = dict(accuracy=int(matrix.trace()) / self._count, mean_recall=confusion.mean_recall(matrix),
                       cross_entropy=float(totals['cross_entropy']) / self._count)
        if 'averaged_correct' in totals:
            figures['averaged_accuracy'] = int(totals['averaged_correct']) / self._count
        largest = [found._replace(name=self._name_of(found.example)) for found in _largest(
            [found for _, of_share in shares for found in of_share])]
        return EvalResult(step, checkpoint, figures, self._count, self._classes, matrix, largest)


def _of_batch(recipe, images, labels, batch_size, num_classes, averaging):
    """Returns the results of a batch: ({name: sum over its examples}, the columns for `_predictions`).

    The last batch may be smaller and is padded.
    """
    count = tf.shape(labels)[0]
    with tf.device('/cpu:0'):
        fed = filled(images, batch_size)
    logits = recipe.inference(views(fed) if averaging else fed)
    plain = logits[:count]  # the first view of each image is the image itself
    predicted = classifier.predicted(plain)
    losses = classifier.cross_entropies(plain, labels)
    sums = dict(
        confusion=tf.math.confusion_matrix(labels, predicted, num_classes + 1, dtype=tf.int64)[:-1],
        cross_entropy=tf.reduce_sum(tf.cast(losses, tf.float64)))
    if averaging:
        of_averages = classifier.predicted(average(logits)[:count])
        sums['averaged_correct'] = tf.reduce_sum(tf.cast(tf.equal(of_averages, tf.cast(labels, tf.int64)), tf.int64))
    # NaN has no order. Non-finite predictions come before finite predictions, whose loss may also be infinite.
    ordered = tf.where_v2(predicted < num_classes, tf.minimum(losses, losses.dtype.max), math.inf)
    largest, which = tf.math.top_k(ordered, tf.minimum(_MOST_SHOWN, tf.size(labels)))
    columns = dict(loss=largest, example=which, label=tf.gather(labels, which), predicted=tf.gather(predicted, which),
                   image=tf.cast(tf.gather(images, which), tf.float32), confidence=tf.reduce_max(tf.nn.softmax(
                       tf.cast(tf.gather(plain, which), tf.float32)), 1))
    return sums, columns


def _predictions(first, **columns: Any):
    """Yields the Predictions of a batch that begins with example `first`.

    Each column is an array for a field of a Prediction. Examples count from `first`.
    """
    for values in zip(*columns.values()):
        found = Prediction(**dict(zip(columns, values)))
        yield found._replace(example=first + int(found.example))


def _largest(predictions):
    return sorted(predictions, key=lambda found: (-found.loss, found.example))[:_MOST_SHOWN]
