"""The curves of a run: the summaries of its steps and the speed between them, for TensorBoard."""
from cifar10.run import summaries
from cifar10.run.rate import Rate, summary_due


class Curves:
    """Says in which steps the summary is wanted, and writes it: in every `every`-th one and the first of all.

    Args:
      events: TensorBoard's file.
      every: steps between two summaries; 0: none.
      examples_per_step: of all towers.
      step: the step that the first one follows.
    """

    def __init__(self, events: summaries.Events, every: int, examples_per_step: int, step: int):
        self._events = events
        self._every = every
        self._rate = Rate(examples_per_step)
        self._written = step

    def due(self, step: int) -> bool:
        """Returns whether the summary of this step, which is about to be taken, is wanted."""
        return summary_due(self._every, self._written, step)

    def report(self, step: int, summary: bytes | None) -> None:
        """Reports the step that has just ended; to be called after each, as the first one is no measure of speed.

        Args:
          step: its number.
          summary: a serialised `tf.Summary`; None unless it was due.
        """
        if not self._rate.started:
            self._rate.start(step)
        if summary is None:
            return
        self._written = step
        speed = self._rate.measure(step)
        # In the file at once, so that no curve ends before the checkpoint that a killed run goes on from.
        self._events.add(summary, step)
        if speed:
            self._events.add(summaries.scalars({summaries.TRAIN + 'examples_per_sec': speed[0]}), step)
