"""Measures the time of each part of a start."""
import contextlib
import time
from collections.abc import Iterator

from cifar10.base.console import Output
from cifar10.run.reporter import Reporter

STARTING, STEPS, EVALUATION, SAVING = 'starting', 'steps', 'evaluation', 'saving'
_SKIPPING = 'first step, with the skip to its batch'
_CALLER = 'on_record'  # the caller's own code


class Cost(Reporter):
    """Sums the seconds of each part of a start. It is the last reporter: the first step belongs to `STARTING`.

    Args:
      began: `time.perf_counter` at the beginning of the start.
      step: the restored step.
      skips: whether the first step waits while its input skips the batches of earlier steps.
    """

    def __init__(self, began: float, step: int, examples_per_step: int, skips: bool = False):
        self._step = self._last = step
        self._skips = skips and step > 0
        self._examples_per_step = examples_per_step
        self._seconds = dict.fromkeys((STEPS, EVALUATION, SAVING, STARTING, _SKIPPING, _CALLER), 0.0)
        self._part, self._mark = STARTING, began
        self._of_caller = Output.current.record_seconds

    @contextlib.contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Context that counts its time for a part, and not for the enclosing part."""
        outer = self._part
        self._enter(part)
        try:
            yield
        finally:
            self._enter(outer)

    def _enter(self, part):
        now, of_caller = time.perf_counter(), Output.current.record_seconds
        self._seconds[self._part] += now - self._mark - (of_caller - self._of_caller)
        self._seconds[_CALLER] += of_caller - self._of_caller
        self._part, self._mark, self._of_caller = part, now, of_caller

    def seconds_of_steps(self) -> float:
        """Returns the seconds so far, without evaluations, checkpoints and the caller's code, as a clock for rates."""
        self._enter(self._part)
        return self._seconds[STARTING] + self._seconds[_SKIPPING] + self._seconds[STEPS]

    def also(self, step, thread):
        if self._skips and self._last == self._step:
            self._enter(_SKIPPING)
        return {}

    def after_step(self, step, results):
        self._enter(STEPS)
        self._last = step

    def summary(self) -> str:
        """Returns the seconds of each part so far, and examples per second."""
        self._enter(self._part)
        whole, steps = sum(self._seconds.values()), self._last - self._step
        digits = 0 if whole >= 100 else 1
        parts = [f'{seconds:.{digits}f} s {part}' for part, seconds in sorted(
            self._seconds.items(), key=lambda item: -item[1]) if seconds >= whole / 200]
        text = f"{whole:.{digits}f} s: {', '.join(parts)}"
        if steps > 1:  # the first belongs to the start
            in_steps = (steps - 1) * self._examples_per_step / self._seconds[STEPS]
            text += f'; {steps * self._examples_per_step / whole:,.0f} images/s overall, {in_steps:,.0f} in steps'
        return text
