"""Stragglers: towers that stay slower than the others, for which every step of a synchronous run waits."""
import collections
from collections.abc import Callable, Sequence

import numpy as np

from cifar10.run.reporter import Reporter

_STEPS = 25  # in a window
_WINDOWS = 20  # that are looked at
_MOST = 15  # so many of them tell that a tower is slow, or that it no longer is
_LIMIT = 1.2  # times the median of the other towers; a tower is slow in a window if it takes longer
_SPREADS = 2  # standard deviations by which a slow tower is above the others; noise varies by as much as it adds


class Stragglers(Reporter):
    """Reports once when a tower becomes slower than the others, and once when it recovers.

    A tower is named when, in at least 15 of the last 20 windows of 25 steps, the median of its times was at least 20%
    above the median of the others, and on average by more than twice its spread over these windows.

    Args:
      places: for each tower where it is, such as '/gpu:2'.
      say: function (word, text) that prints a line.
    """

    def __init__(self, places: Sequence[str], say: Callable[[str, str], None]):
        self._places = places
        self._say = say
        self._seconds = []  # each tower's in the steps of the current window
        # For each tower the median of its seconds in each window, and how many times that of the others it was.
        self._windows = [collections.deque(maxlen=_WINDOWS) for _ in places]
        self._named = np.zeros(len(places), bool)

    def after_step(self, step, results):
        seconds = results['seconds'][:, 1]  # of each tower, 0 where it was not measured; or none
        if len(seconds) < 2:
            return
        self._seconds.append(seconds)
        if len(self._seconds) < _STEPS:
            return
        medians = np.array([np.median(each[each > 0]) if each.any() else 0 for each in np.stack(self._seconds, 1)])
        self._seconds.clear()
        measured = np.flatnonzero(medians)
        if len(measured) < 2:
            return
        for k, ratio in zip(measured, medians[measured] / medians_of_others(medians[measured])):
            self._windows[k].append((medians[k], ratio))
            self._judge(k)

    def _judge(self, k):
        """Reports tower k if it has become slow, or has recovered."""
        seconds, ratios = np.transpose(self._windows[k])
        slow = np.count_nonzero(ratios >= _LIMIT)
        if self._named[k]:
            changes = len(ratios) - slow >= _MOST
        else:
            changes = slow >= _MOST and ratios.mean() - 1 > _SPREADS * ratios.std()
        if changes:
            self._named[k] = not self._named[k]
            tower = f'tower {k} on {self._places[k]}'
            takes = f'{np.median(seconds):.3f} s, {np.median(ratios) - 1:.0%} more than the median of the others'
            if self._named[k]:
                self._say('slow', f'{tower} takes {takes}, in {slow} of the last {len(ratios)} windows of {_STEPS} '
                                  'steps; the device is slower, or other programs use it: --explain looks closer')
            else:
                self._say('recovered', f'{tower} is no longer slower than the others')


def medians_of_others(values: np.ndarray) -> np.ndarray:
    """Returns for each of at least two values the median of the others."""
    ordered = np.sort(values)
    # The others are all but one, so what comes after that one in the order moves down by a place.
    middle = [(len(values) - 2) // 2, (len(values) - 1) // 2]
    lower, upper = (np.where(values <= ordered[i], ordered[i + 1], ordered[i]) for i in middle)
    return (lower + upper) / 2
