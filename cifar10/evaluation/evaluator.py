"""The evaluation graph: predictions for a data set, with every example counted once.

It reads no checkpoint; the caller sets the variables.
"""
import math
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.activity import moved
from cifar10.base.console import say
from cifar10.base.graphs import Loader, seeded_graph
from cifar10.base.registry import DATASETS
from cifar10.data import records
from cifar10.data.images import eval_batches, loaded
from cifar10.evaluation import confusion
from cifar10.evaluation.views import average, views
from cifar10.model import classifier
from cifar10.model.averages import saved_names
from cifar10.model.class_weights import are_uneven
from cifar10.model.recipe import Recipe
from cifar10.parallel.devices import Devices
from cifar10.parallel.session_config import refuse_absent, session_config
from cifar10.parallel.towers import build_towers
from cifar10.run import metrics

_BATCH_PIXELS = 500 * 64 ** 2
_VALIDATION_BATCH = 500
_MOST_SHOWN = 16  # images of an evaluation
_FEW, _FEW_OF_CLASS = 100, 10  # images, with a standard error of an accuracy of up to 0.05, of a recall of up to 0.16


class Prediction(NamedTuple):
    """What was predicted for an image.

    Attributes:
      loss: the cross entropy; infinite if the probabilities are not finite.
      example: the number of the image in its part of the data set.
      label, predicted: the true class, and the predicted one, as `classifier.predicted` returns it.
      image: float32 [height, width, 3], as the network gets it.
      name: `Records.name_of` the example.
      confidence: the probability that was given to the predicted class.
    """
    loss: float
    example: int
    label: int
    predicted: int
    image: np.ndarray
    name: str = ''
    confidence: float = 0.0

    @property
    def probability(self) -> float:
        """The probability of the true class; NaN if the probabilities are not finite."""
        return math.exp(-self.loss) if math.isfinite(self.loss) else math.nan


class Result(NamedTuple):
    """The result of one pass over the examples.

    Attributes:
      confusion: int64 [classes, classes], how many examples of each class (row) were predicted as each (column). One
        more column counts predictions that are not finite, if there are any.
      cross_entropy: the mean; not finite if a prediction is not.
      averaged_correct: how many predictions are correct with test-time averaging; None without it.
      largest_losses: the `Prediction`s with the largest losses, right or wrong, the largest first: predictions that are
        not finite, then the images that fit their class least, some of which may have the wrong one.
    """
    confusion: np.ndarray
    cross_entropy: float
    averaged_correct: int | None = None
    largest_losses: Sequence[Prediction] = ()

    @property
    def count(self) -> int:
        """The number of examples."""
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        """How many predictions are correct."""
        return int(self.confusion.trace())

    @property
    def not_finite(self) -> int:
        """How many predictions are not finite."""
        return int(self.confusion[:, len(self.confusion):].sum())

    @property
    def accuracy(self) -> float:
        """The fraction of predictions that are correct."""
        return self.correct / self.count

    @property
    def mean_recall(self) -> float:
        """The fraction of the images of a class that are predicted as it, as the mean over the classes."""
        return confusion.mean_recall(self.confusion)

    @property
    def averaged_accuracy(self) -> float | None:
        """The fraction of predictions that are correct with test-time averaging; None without it."""
        return None if self.averaged_correct is None else self.averaged_correct / self.count

    @property
    def figures(self) -> dict[str, float]:
        """The figures of a record in metrics.jsonl."""
        figures = dict(accuracy=self.accuracy, mean_recall=self.mean_recall, cross_entropy=self.cross_entropy,
                       correct=self.correct, examples=self.count)
        if self.averaged_correct is not None:
            figures['averaged_accuracy'] = self.averaged_accuracy
        if self.not_finite:
            figures['not_finite'] = self.not_finite
        return figures

    def named_losses(self, classes: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the largest losses as a record has them; 'probability' is that of the class of the image.

        'predicted' and 'probability' are None if the prediction is not finite.
        """
        return [{'image': found.name, 'class': classes[found.label], 'predicted': [*classes, None][found.predicted],
                 'probability': metrics.rounded(found.probability)} for found in self.largest_losses]

    def __str__(self):
        line = f'precision @ 1 = {self.accuracy:.3f} ({self.correct} of {self.count})'
        if self.averaged_correct is not None:
            line += f', {self.averaged_accuracy:.3f} with test-time averaging'
        if are_uneven(self.confusion.sum(1)):
            line += f'; mean recall of the classes {self.mean_recall:.3f}'
        if self.not_finite:
            line += f'; {self.not_finite} not finite, such as that of {self.largest_losses[0].name}'
        return line


class ScalarResult(NamedTuple):
    """The result of one pass over the examples of a model without classes.

    Attributes:
      loss: the mean of its loss over the examples.
      count: the number of examples.
    """
    loss: float
    count: int

    @property
    def figures(self) -> dict[str, float]:
        """The figures of a record in metrics.jsonl."""
        return dict(loss=self.loss, examples=self.count)

    def __str__(self):
        return f'loss = {self.loss:.5g} ({self.count} examples)'


def batch_size(image_size: int, most: int) -> int:
    """Returns how many images of a height and width are evaluated at a time: at most `most`, and 2 million pixels."""
    return max(min(most, _BATCH_PIXELS // image_size ** 2), 1)


def filled(images: tf.Tensor, count: int) -> tf.Tensor:
    """Returns at most `count` images filled up with the last of them, so that their number is known in the graph.

    Networks of TensorFlow 1 use that number, as in `tf.reshape(x, [images.shape[0], -1])`. There are at least two
    images, of which `tf.squeeze(x)` leaves the axis. A black one could become NaN where each image is scaled.

    Args:
      images: [n, height, width, 3], with n > 0.

    Returns:
      [max(count, 2), height, width, 3].
    """
    return tf.gather(images, tf.minimum(tf.range(max(count, 2)), tf.shape(images)[0] - 1))


def say_if_few(data: records.Records, is_held_out: bool) -> None:
    """Prints how exactly an accuracy, and the recall of the smallest class, are known from few test images.

    Args:
      is_held_out: whether the images are part of the run's data set.
    """
    least = min(filter(None, data.class_counts))
    if data.count >= _FEW and least >= _FEW_OF_CLASS:
        return
    name = data.classes[data.class_counts.index(least)]
    accuracy, recall = (f'+-{0.5 / math.sqrt(count):.2f}' for count in (data.count, least))
    is_fraction = is_held_out and DATASETS.is_own(data.dataset)
    remedy = '; another run could hold out more (--test_fraction)' if is_fraction else ''
    say('few', f'{data.count} test images, {least} of {name}: accuracy is known to about {accuracy}, the recall of '
               f'{name} to {recall}{remedy}')


class Evaluator:
    """The evaluation graph, built in the current default graph. The devices take the batches in turn.

    Args:
      devices: names of the devices that compute the network.
      batch_size: images in a batch; the result does not depend on it.
      num_examples: how many images to evaluate on; None for all.
      averaging: whether to average the predictions for several views of an image too.
      classes: the names of the network's classes, which include the classes of the data; None if they are the same.

    Attributes:
      read: the operation that reads the data; to be run once in a session.
    """

    def __init__(self, data: records.Records, recipe: Recipe, devices: Sequence[str], batch_size: int,
                 num_examples: int | None = None, averaging: bool = False, classes: Sequence[str] | None = None):
        self._count = num_examples or data.count
        batch_size = min(batch_size, self._count)
        if not recipe.has_classes:  # a mean over a batch that is filled up would count some examples twice
            batch_size = max(size for size in range(1, batch_size + 1) if self._count % size == 0)
        self._name_of = data.name_of
        classes = classes or data.classes
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
        # For each device the operation that starts its batches at the first, what is found in the next batch, and
        # the first example of each batch.
        self._shares = build_towers(devices, tower)

    def run(self, session: tf.Session) -> Result | ScalarResult:
        """Makes one pass over the examples."""
        session.run([start for start, _, _ in self._shares])

        is_ended = threading.Event()  # by an error or an interrupt

        def run_share(share):
            _, found, firsts = share
            all_sums, largest = [], []
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
        if 'loss' in totals:
            return ScalarResult(float(totals['loss']) / self._count, self._count)
        matrix = totals['confusion']
        if not matrix[:, -1].any():
            matrix = matrix[:, :-1]
        cross_entropy = float(totals['cross_entropy']) / self._count
        averaged_correct = int(totals['averaged_correct']) if 'averaged_correct' in totals else None
        largest = [found._replace(name=self._name_of(found.example)) for found in _largest(
            [found for _, of_share in shares for found in of_share])]
        return Result(matrix, cross_entropy, averaged_correct, largest)


def _of_batch(recipe, images, labels, batch_size, num_classes, averaging):
    """Returns what is found in a batch: ({name: sum over its examples}, the columns that `_predictions` gets).

    The last batch, which may be smaller, is filled up.
    """
    if not recipe.has_classes:
        images, labels = tf.ensure_shape(images, [batch_size, *images.shape[1:]]), tf.ensure_shape(labels, [batch_size])
        return dict(loss=tf.cast(recipe.own.loss(images, labels), tf.float64) * batch_size), {}
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
    # NaN has no order. Predictions that are not finite come before the others, whose loss may be infinite, too.
    ordered = tf.where_v2(predicted < num_classes, tf.minimum(losses, losses.dtype.max), math.inf)
    largest, which = tf.math.top_k(ordered, tf.minimum(_MOST_SHOWN, tf.size(labels)))
    columns = dict(loss=largest, example=which, label=tf.gather(labels, which), predicted=tf.gather(predicted, which),
                   image=tf.cast(tf.gather(images, which), tf.float32), confidence=tf.reduce_max(tf.nn.softmax(
                       tf.cast(tf.gather(plain, which), tf.float32)), 1))
    return sums, columns


def _predictions(first, **columns: Any):
    """Yields the Predictions of a batch that begins with example `first`.

    The columns are arrays, for each field of a Prediction. Examples count from `first`.
    """
    for values in zip(*columns.values()):
        found = Prediction(**dict(zip(columns, values)))
        yield found._replace(example=first + int(found.example))


def _largest(predictions):
    """Returns the predictions with the largest losses, the largest first."""
    return sorted(predictions, key=lambda found: (-found.loss, found.example))[:_MOST_SHOWN]


def trained_session(devices: Devices, graph: tf.Graph | None = None) -> tf.Session:
    """Returns a session for a trained model; raises a UsageError if this process lacks a device of it."""
    session = tf.Session(graph=graph, config=session_config(devices))
    refuse_absent(session, devices)
    return session


class Validation:
    """Evaluates values of the variables of a run.

    Args:
      devices: devices of this process.
      use_ema: whether to evaluate the moving averages of the variables.
      saved: the names of the variables of the run, as in checkpoints.

    Attributes:
      names: the variables whose values it evaluates, as in checkpoints.
    """

    def __init__(self, recipe: Recipe, data: records.Records, devices: Devices, use_ema: bool,
                 saved: Collection[str]):
        with seeded_graph() as graph:
            self._evaluator = Evaluator(data, recipe, devices.tower_devices, batch_size(data.size, _VALIDATION_BATCH))
            variables = {variable.op.name: variable for variable in tf.global_variables()}
            names = saved_names(variables, saved, use_ema)
            self.names = list(names.values())
            with tf.device('/cpu:0'):
                self._loader = Loader({names[name]: variable for name, variable in variables.items()})
        self._session = trained_session(devices, graph)
        self._session.run(self._evaluator.read)

    def evaluate(self, values: dict) -> Result | ScalarResult:
        """Returns the Result of a pass over the images with these values of the variables, arrays by `names`."""
        self._loader.load(self._session, values)
        return self._evaluator.run(self._session)

    def close(self) -> None:
        """Closes the session, which frees its memory."""
        self._session.close()
