"""What becomes of each evaluation: a line, a table, TensorBoard's file, metrics.jsonl, the best checkpoint."""
import datetime
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from cifar10.evaluation import confusion
from cifar10.evaluation.evaluator import Result
from cifar10.run import summaries
from cifar10.run.best import Best
from cifar10.run.metrics import EVAL, Metrics


def scalars_of(result: Result) -> dict[str, float]:
    """Returns the curves of TensorBoard that a Result is a point of."""
    values = dict(precision=result.precision, cross_entropy=result.cross_entropy)
    if result.averaged is not None:
        values['averaged_precision'] = result.averaged_precision
    return {summaries.EVAL + name: value for name, value in values.items()}


class Report:
    """Writes Results; to be made when the evaluation graph is complete but for a picture, which it adds.

    Args:
      eval_dir: where.
      classes: their names.
      fetched: what a pass over the examples runs.
      best: what keeps the best checkpoint, or None.
      per_class: whether to print the table of the classes.
    """

    def __init__(self, eval_dir: str, classes: Sequence[str], fetched: Sequence[tf.Tensor],
                 best: Best | None = None, per_class: bool = False):
        self._classes, self._best, self._per_class = classes, best, per_class
        with tf.device('/cpu:0'):
            self._pixels = tf.placeholder(tf.uint8, [None, None, 3])
            self._picture = tf.raw_ops.ImageSummary(
                tag=summaries.EVAL + 'precision_confusion', tensor=self._pixels[None], max_images=1)
        self._metrics, self._events = Metrics(eval_dir), summaries.Events(eval_dir)
        self._events.begin(tf.get_default_graph(), fetched)

    def __call__(self, session: tf.Session, prefix: str, step: int, result: Result) -> None:
        """Reports the Result of a checkpoint."""
        print(f'{datetime.datetime.now()}: {result}, step {step}')
        if self._per_class:
            print('\n'.join(confusion.lines(result.confusion, self._classes)))
        self._events.add(summaries.scalars(scalars_of(result)), step)
        table = confusion.markdown(result.confusion, self._classes)
        self._events.add(summaries.text(summaries.EVAL + 'precision_by_class', table), step)
        self._events.add(session.run(self._picture, {self._pixels: confusion.picture(result.confusion)}), step)
        figures = dict(precision=result.precision, cross_entropy=result.cross_entropy, correct=result.correct,
                       examples=result.count)
        if result.averaged is not None:
            figures['averaged_precision'] = result.averaged_precision
        self._metrics.drop_after(step - 1)  # of a run that began anew, or of an evaluator before this one
        self._metrics.add(EVAL, step, **figures, checkpoint=prefix)
        if self._best and self._best.offer(prefix, **figures):
            print(f'best       {self._best.path}')

    def close(self) -> None:
        """Closes the file for TensorBoard."""
        self._events.close()
