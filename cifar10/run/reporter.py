"""Defines reporters, which the loop calls after each step. They write log lines, curves and checkpoints."""
from collections.abc import Mapping
from typing import Any


class Reporter:
    """Acts after the steps that it chooses, such as every 1,000th."""

    def also(self, step: int, thread: int) -> dict[str, Any]:
        """Returns named tensors to fetch with the next step.

        Args:
          step: the step's number; in asynchronous training, the number of begun steps.
          thread: the step's tower in asynchronous training; else 0.
        """
        del step, thread
        return {}

    def awaits(self, step: int) -> bool:
        """Returns whether later steps must wait for this step's `after_step`; called for each step."""
        del step
        return False

    def after_step(self, step: int, results: Mapping[str, Any]) -> None:
        """Called after each step, in step order.

        Args:
          step: the step's number.
          results: the step's figures, as `training.run.Run.run_step` returns them.
        """

    def at_end(self, step: int) -> None:
        """Called once after the last step, even if a signal ends the run."""


def due(every: int, step: int) -> bool:
    """Returns whether a step is a multiple of `every`; False if `every` is 0."""
    return every > 0 and step % every == 0
