"""What the loop hands each step to, in order: lines, curves, traces, evaluations, checkpoints."""
from collections.abc import Mapping
from typing import Any


class Reporter:
    """Does something after steps, each time that it is due; that is for the reporter to know."""

    def also(self, step: int) -> dict[str, Any]:
        """Returns the tensors, by names, that it wants of a step that is about to be taken."""
        del step
        return {}

    def tracing(self, step: int) -> dict[str, Any]:
        """Returns the options of `tf.Session.run` that it wants for a step that is about to be taken."""
        del step
        return {}

    def after_step(self, step: int, results: Mapping[str, Any]) -> None:
        """Is called after each step.

        Args:
          step: its number; in asynchronous training, steps of other threads may lie between two calls.
          results: those of the step, as `training.run.Run.take` returns them.
        """

    def at_end(self, step: int) -> None:
        """Is called once after the last step, or after the one that a signal has made the last."""
