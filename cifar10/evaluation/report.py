"""Reports of evaluations: lines, TensorBoard's file, metrics.jsonl, and the best checkpoint."""
import contextlib
import datetime
import os
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base import files
from cifar10.base.console import say
from cifar10.evaluation import confusion
from cifar10.evaluation.evaluator import Result
from cifar10.run import metrics, summaries
from cifar10.run.best import Best
from cifar10.run.events import Events


def scalars_of(result: Result) -> dict[str, float]:
    """Returns the points that a Result adds to TensorBoard's curves, by the tags of the curves."""
    return {summaries.EVAL + name: value for name, value in result.figures.items() if isinstance(value, float)}


def result_line(step: int, result: Result) -> str:
    """Returns the line that reports the Result of a step."""
    return f'{datetime.datetime.now()}: {result}, step {step}'


class Report:
    """Reports Results. Make it after the evaluation graph, to which it adds an image summary.

    Args:
      eval_dir: the directory to write to.
      classes: the names of the classes.
      evaluation: what is evaluated and how, for every record; its 'run' is the run.
      keep_best: whether to keep the best checkpoint.
      per_class: whether to print the table of the classes.
    """

    def __init__(self, eval_dir: str, classes: Sequence[str], evaluation: dict[str, Any], keep_best: bool = True,
                 per_class: bool = False):
        self._eval_dir = eval_dir
        self._classes = classes
        self._evaluation = evaluation
        self._per_class = per_class
        self._best = Best(eval_dir, evaluation, '--eval_dir') if keep_best else None
        with tf.device('/cpu:0'):
            self._pixels = tf.placeholder(tf.uint8, [None, None, 3])
            self._image = tf.raw_ops.ImageSummary(
                tag=summaries.EVAL + 'precision_confusion', tensor=self._pixels[None], max_images=1)
        runs = {record.get('run') for record in metrics.read(eval_dir, metrics.EVAL)}
        if runs - {None, evaluation['run']}:
            say(f'warning: --eval_dir={eval_dir} has evaluations of another run too, and TensorBoard would join '
                  'their curves; use another --eval_dir')
        self._metrics = metrics.Metrics(eval_dir)
        self._events = Events(eval_dir)
        self._events.add_graph(tf.get_default_graph())

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Context in which no other process evaluates for the directory."""
        with files.locked(os.path.join(self._eval_dir, 'lock'),
                          waiting=f'waiting    for another evaluation in {self._eval_dir}'):
            yield

    def hold(self, prefix: str, step: int) -> None:
        """Keeps a checkpoint from being deleted until it is reported, if the best one is kept."""
        if self._best:
            self._best.copy(prefix, step)

    def __call__(self, session: tf.Session, step: int, result: Result) -> dict:
        """Reports the Result of the checkpoint that is held; returns the record to send."""
        say(result_line(step, result))
        if self._per_class:
            if result.averaged_correct is not None:
                say('each class, without test-time averaging:')
            for line in confusion.lines(result.confusion, self._classes):
                say(line)
        self._events.add_scalars(scalars_of(result), step)
        table = confusion.markdown(result.confusion, self._classes)
        self._events.add_text(summaries.EVAL + 'precision_by_class', table, step)
        self._events.add(session.run(self._image, {self._pixels: confusion.image(result.confusion)}), step)
        record = self._metrics.write(metrics.EVAL, step, replacing=('step', *self._evaluation), **result.figures,
                                     **self._evaluation)
        if self._best and self._best.keep(step, **result.figures):
            say(f'best       {self._best.path}')
        return record

    def close(self) -> None:
        """Closes TensorBoard's file."""
        self._events.close()
