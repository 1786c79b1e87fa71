"""Reporters: objects that the loop calls after each step, such as those for log lines, curves and checkpoints."""
from collections.abc import Mapping
from typing import Any


class Reporter:
    """Acts after the steps for which it is due, such as every 1,000th; each reporter decides when that is."""

    def also(self, step: int, thread: int) -> dict[str, Any]:
        """Returns tensors by names; they are fetched with the step that begins.

        Args:
          step: its number; in asynchronous training, the number of steps that have begun.
          thread: the tower that takes it in asynchronous training; else 0.
        """
        del step, thread
        return {}

    def traces(self, step: int) -> bool:
        """Returns whether the step that begins is traced."""
        del step
        return False

    def awaits(self, step: int) -> bool:
        """Returns whether no later step may begin before `after_step` was called for this one; asked for each step."""
        del step
        return False

    def after_step(self, step: int, results: Mapping[str, Any]) -> None:
        """Called after each step, in the order of their numbers.

        Args:
          step: its number.
          results: the figures of the step, as `training.run.Run.run_step` returns them.
        """

    def at_end(self, step: int) -> None:
        """Called once after the last step, which a signal may have made the last."""


def due(every: int, step: int) -> bool:
    """Returns whether a step is a multiple of `every`; never, if `every` is 0."""
    return every > 0 and step % every == 0


class Rate:
    """Speed over the steps since it was last measured. `now` is a reading of `Cost.seconds_of_steps`."""

    def __init__(self, examples_per_step: int):
        self._examples_per_step = examples_per_step
        self._mark = None

    def start(self, step: int, now: float) -> None:
        """Begins a window after `step`."""
        self._mark = step, now

    def so_far(self, step: int, now: float) -> tuple[float, float] | None:
        """Returns (examples a second, seconds a step) in the window, or None if it holds no step yet."""
        if self._mark is None or step == self._mark[0]:
            return None
        seconds = (now - self._mark[1]) / (step - self._mark[0])
        return self._examples_per_step / seconds, seconds

    def measure(self, step: int, now: float) -> tuple[float, float] | None:
        """Returns what `so_far` returns, and begins a new window."""
        speed = self.so_far(step, now)
        self.start(step, now)
        return speed
