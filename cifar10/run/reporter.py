"""Reporters: objects that the loop calls after each step, such as those for log lines, curves and checkpoints."""
from collections.abc import Mapping
from typing import Any


class Reporter:
    """Acts after the steps for which it is due, such as every 1,000th. Each reporter decides itself when that is."""

    def also(self, step: int) -> dict[str, Any]:
        """Returns tensors by names; they are fetched with the step that comes next."""
        del step
        return {}

    def tracing(self, step: int) -> dict[str, Any]:
        """Returns options of `tf.Session.run` for the step that comes next, or what it is fed (`feed`)."""
        del step
        return {}

    def after_step(self, step: int, results: Mapping[str, Any]) -> None:
        """Is called after each step.

        Args:
          step: its number; in asynchronous training, steps of other threads may lie between two calls.
          results: the figures of the step, as `training.run.Run.take` returns them.
        """

    def at_end(self, step: int) -> None:
        """Is called once after the last step, which a signal may have made the last."""
