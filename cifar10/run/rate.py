"""`due`: was a multiple of N steps passed? `Rate`: examples a second since the last reading."""
import time


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
