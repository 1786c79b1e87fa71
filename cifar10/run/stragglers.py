"""Stragglers: towers that stay slower than the others, for which every step of a synchronous run waits.

It knows the seconds of the towers, but not how they were measured.
"""
import collections
from collections.abc import Callable, Sequence

import numpy as np

_STEPS = 100  # that are looked at
_LIMIT = 1.2  # times the median of the other towers; a tower is slow in a step if it takes longer
# In how many of the steps a tower must be slow to be named, and in how many it may be once it has recovered. That not
# all of them count lets a single odd step pass; the gap between the two keeps a tower near the limit from going to and
# fro. Both were chosen by the measurement in docs/outputs.md.
_NAMED, _RECOVERED = 90, 50


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
        self._relative = collections.deque()  # the same divided by the median of the others
        self._slow = np.zeros(len(places), int)  # in how many of these steps each tower was slow
        self._named = np.zeros(len(places), bool)

    def report(self, seconds: Sequence[float]) -> None:
        """Reports the step that has just ended.

        Args:
          seconds: those of each tower; none if they were not measured.
        """
        if len(seconds) < 2:
            return
        relative = seconds / medians_of_others(seconds)
        self._seconds.append(seconds)
        self._relative.append(relative)
        self._slow += relative > _LIMIT
        if len(self._seconds) < _STEPS:
            return
        changed = np.where(self._named, self._slow <= _RECOVERED, self._slow >= _NAMED)
        for k in np.flatnonzero(changed):
            self._named[k] = not self._named[k]
            self._say(self._slow_line(k) if self._named[k] else
                      f'recovered  tower {k} on {self._places[k]} is no longer slower than the others')
        self._seconds.popleft()
        self._slow -= self._relative.popleft() > _LIMIT

    def _slow_line(self, k):
        seconds, relative = (np.median(np.stack(steps)[:, k]) for steps in (self._seconds, self._relative))
        return (f'slow       tower {k} on {self._places[k]} takes {seconds:.3f} s, {relative - 1:.0%} more than the '
                f'median of the others, for {_STEPS} steps')


def medians_of_others(values: Sequence[float]) -> np.ndarray:
    """Returns for each of at least two values the median of the others."""
    ordered = np.sort(values)
    # The others are all but one, so what comes after that one in the order moves down by a place.
    middle = [(len(values) - 2) // 2, (len(values) - 1) // 2]
    lower, upper = (np.where(values <= ordered[i], ordered[i + 1], ordered[i]) for i in middle)
    return (lower + upper) / 2
