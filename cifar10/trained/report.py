"""What becomes of each evaluation: a line, a table, TensorBoard's file, metrics.jsonl, the best checkpoint."""
import contextlib
import datetime
from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10 import files
from cifar10.run import metrics, summaries
from cifar10.trained import confusion
from cifar10.trained.best import Best
from cifar10.trained.evaluator import Result


def scalars_of(result: Result) -> dict[str, float]:
    """Returns the curves of TensorBoard that a Result is a point of."""
    return {summaries.EVAL + name: value for name, value in result.figures.items() if isinstance(value, float)}


class Report:
    """Writes Results. To be made once the evaluation graph is built; it adds one operation, an image summary.

    Args:
      eval_dir: where.
      classes: their names.
      fetched: what a pass over the examples runs.
      of: what is evaluated and how, as every record says.
      keep_best: whether to keep the best checkpoint.
      per_class: whether to print the table of the classes.
    """

    def __init__(self, eval_dir: str, classes: Sequence[str], fetched: Sequence[tf.Tensor],
                 of: dict[str, Any], keep_best: bool = True, per_class: bool = False):
        self._eval_dir, self._classes, self._of, self._per_class = eval_dir, classes, of, per_class
        self._best = Best(eval_dir, of) if keep_best else None
        with tf.device('/cpu:0'):
            self._pixels = tf.placeholder(tf.uint8, [None, None, 3])
            self._picture = tf.raw_ops.ImageSummary(
                tag=summaries.EVAL + 'precision_confusion', tensor=self._pixels[None], max_images=1)
        if any(record.get('run') not in (None, of['run']) for record in metrics.read(eval_dir, metrics.EVAL)):
            print(f'warning: --eval_dir={eval_dir} has evaluations of another run, too, whose curves TensorBoard would '
                  'join to these; use another --eval_dir')
        self._metrics, self._events = metrics.Metrics(eval_dir), summaries.Events(eval_dir)
        self._events.begin(tf.get_default_graph(), fetched)

    def candidate(self, prefix: str) -> contextlib.AbstractContextManager:
        """Returns the context in which a checkpoint is evaluated and reported, kept from vanishing meanwhile."""
        return self._best.candidate(prefix) if self._best else contextlib.nullcontext()

    def __call__(self, session: tf.Session, candidate: str | None, step: int, result: Result) -> None:
        """Reports the Result of a checkpoint; `candidate` is what the context of that name gave."""
        print(f'{datetime.datetime.now()}: {result}, step {step}')
        if self._per_class:
            if result.averaged is not None:
                print('each class, without test-time averaging:')
            print('\n'.join(confusion.lines(result.confusion, self._classes)))
        self._events.add(summaries.scalars(scalars_of(result)), step)
        table = confusion.markdown(result.confusion, self._classes)
        self._events.add(summaries.text(summaries.EVAL + 'precision_by_class', table), step)
        self._events.add(session.run(self._picture, {self._pixels: confusion.picture(result.confusion)}), step)
        with files.locked(self._eval_dir):  # another evaluator may use the folder
            self._metrics.add(metrics.EVAL, step, replacing=('step', *self._of), **result.figures, **self._of)
            if self._best and self._best.offer(candidate, step, **result.figures):
                print(f'best       {self._best.path}')

    def close(self) -> None:
        """Closes TensorBoard's file."""
        self._events.close()
