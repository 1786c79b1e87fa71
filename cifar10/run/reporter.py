"""Reporters: objects that the loop calls after each step, such as those for log lines, curves and checkpoints."""
import time
from collections.abc import Mapping
from typing import Any


class Reporter:
    """Acts after the steps for which it is due, such as every 1,000th; each reporter decides when that is."""

    def also(self, step: int) -> dict[str, Any]:
        """Returns tensors by names; they are fetched with the next step."""
        del step
        return {}

    def tracing(self, step: int) -> dict[str, Any]:
        """Returns options of `tf.Session.run` for the next step, or what it is fed (`feed`)."""
        del step
        return {}

    def after_step(self, step: int, results: Mapping[str, Any]) -> None:
        """Called after each step.

        Args:
          step: its number; in asynchronous training, steps of other threads may lie between two calls.
          results: the figures of the step, as `training.run.Run.take` returns them.
        """

    def at_end(self, step: int) -> None:
        """Called once after the last step, which a signal may have made the last."""


def due(every: int, before: int, step: int) -> bool:
    """Returns whether a multiple of `every` is above `before` and at most `step`; never, if `every` is 0."""
    return every > 0 and step // every > before // every


def summary_due(every: int, before: int, step: int) -> bool:
    """Returns whether a step has a summary: the first one has, and the next after each multiple of `every`."""
    return due(every, before, step) or (every > 0 and step == 1)


class Rate:
    """Wall-clock speed over the steps since it was last asked; the first step, a warm-up, is left out."""

    def __init__(self, examples_per_step: int):
        self._examples_per_step = examples_per_step
        self._mark = None

    def start(self, step: int, at: float | None = None) -> None:
        """Begins a window after `step`, now or at a reading of `time.perf_counter`."""
        self._mark = step, time.perf_counter() if at is None else at

    def so_far(self, step: int) -> tuple[float, float] | None:
        """Returns (examples a second, seconds a step) in the window, or None if it holds no step yet."""
        if self._mark is None or step == self._mark[0]:
            return None
        seconds = (time.perf_counter() - self._mark[1]) / (step - self._mark[0])
        return self._examples_per_step / seconds, seconds

    def measure(self, step: int) -> tuple[float, float] | None:
        """Returns what `so_far` returns, and begins a new window."""
        speed = self.so_far(step)
        self.start(step)
        return speed
