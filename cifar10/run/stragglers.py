"""Stragglers: towers that stay slower than the others, for which every step of a synchronous run waits.

It knows the seconds of the towers, but not how they were measured.
"""
import collections
from collections.abc import Callable, Sequence

import numpy as np

_STEPS = 100  # that are looked at
_LIMIT = 1.2  # times the median of the other towers; a tower is slow in a step if it takes longer
# A tower is named when it was slow in so many of these steps, and has recovered when in so few. A few odd steps do not
# hide a slow tower, and one near the limit is not named again and again. A median over the steps would be a bad rule:
# towers that share the cores of a CPU were slow in up to 83 of 100 steps (docs/outputs.md).
_NAMED, _RECOVERED = 95, 50


class Stragglers:
    """Says once that a tower has become slower than the others, and once that it no longer is.

    Args:
      places: for each tower where it is, such as '/gpu:2'.
      say: function that prints a line.
    """

    def __init__(self, places: Sequence[str], say: Callable[[str], None]):
        self._places = places
        self._say = say
        self._seconds = collections.deque()  # each tower's in the last steps
        self._others = collections.deque()  # for each tower the median of the others' seconds in the same steps
        self._slow = np.zeros(len(places), int)  # in how many of these steps each tower was slow
        self._named = np.zeros(len(places), bool)

    def report(self, seconds: np.ndarray) -> None:
        """Reports the step that has just ended.

        Args:
          seconds: float32 [towers], or [0] if they were not measured.
        """
        if len(seconds) < 2:
            return
        others = medians_of_others(seconds)
        self._seconds.append(seconds)
        self._others.append(others)
        self._slow += _are_slow(seconds, others)
        if len(self._seconds) < _STEPS:
            return
        changed = np.where(self._named, self._slow <= _RECOVERED, self._slow >= _NAMED)
        for k in np.flatnonzero(changed):
            self._named[k] = not self._named[k]
            self._say(self._slow_line(k) if self._named[k] else
                      f'recovered  tower {k} on {self._places[k]} is no longer slower than the others')
        self._slow -= _are_slow(self._seconds.popleft(), self._others.popleft())

    def _slow_line(self, k):
        seconds, others = (np.median(np.stack(steps)[:, k]) for steps in (self._seconds, self._others))
        return (f'slow       tower {k} on {self._places[k]} takes {seconds:.3f} s, {seconds / others - 1:.0%} more '
                f'than the median of the others, for {_STEPS} steps')


def _are_slow(seconds, others):
    """Returns which towers are slow in a step; none where the others took no time that could be measured."""
    return (others > 0) & (seconds > _LIMIT * others)


def medians_of_others(values: np.ndarray) -> np.ndarray:
    """Returns for each of at least two values the median of the others."""
    ordered = np.sort(values)
    # The others are all but one, so what comes after that one in the order moves down by a place.
    middle = [(len(values) - 2) // 2, (len(values) - 1) // 2]
    lower, upper = (np.where(values <= ordered[i], ordered[i + 1], ordered[i]) for i in middle)
    return (lower + upper) / 2
