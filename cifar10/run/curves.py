"""The curves of a run: the summaries of its steps and the speed between them, for TensorBoard."""
import tensorflow.compat.v1 as tf

from cifar10.run.events import Events
from cifar10.run.rate import Rate, summary_due
from cifar10.run.reporter import Reporter
from cifar10.run.summaries import TRAIN


class Curves(Reporter):
    """Writes a summary in the first step of all and in every `every`-th one.

    Args:
      events: TensorBoard's file.
      every: steps between two summaries; 0: none.
      examples_per_step: of all towers.
      step: the step that the first one follows.
      summary: string scalar, a serialised `tf.Summary` of a step; None if there is none.
    """

    def __init__(self, events: Events, every: int, examples_per_step: int, step: int,
                 summary: tf.Tensor | None):
        self._summary = summary
        self._events = events
        self._every = every
        self._rate = Rate(examples_per_step)
        self._written = step

    def also(self, step):
        return dict(summary=self._summary) if summary_due(self._every, self._written, step) else {}

    def after_step(self, step, results):
        if self._rate.so_far(step) is None:  # the first step is no measure of speed
            self._rate.start(step)
        if 'summary' not in results:
            return
        self._written = step
        speed = self._rate.measure(step)
        # In the file at once, so that no curve ends before the checkpoint that a killed run goes on from.
        self._events.add(results['summary'], step)
        if speed:
            self._events.add_scalars({TRAIN + 'examples_per_sec': speed[0]}, step)
