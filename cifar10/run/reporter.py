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
