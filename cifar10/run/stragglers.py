"""Stragglers: towers that stay slower than the others, for which every step of a synchronous run waits."""
import collections
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.run.metrics import TOWERS, Metrics
from cifar10.run.reporter import Reporter, due

_STEPS = 25  # in a window
_WINDOWS = 20  # that are looked at
_MOST = 15  # so many of them tell that a tower is slow, or that it no longer is
_LIMIT = 1.2  # times the median of the other towers; a tower is slow in a window if it takes longer
_SPREADS = 2  # standard deviations by which a slow tower is above the others; noise varies by as much as it adds


class Stragglers(Reporter):
    """Reports once when a tower becomes slower than the others, and once when it recovers.

    A tower is named when, in at least 15 of the last 20 windows of 25 steps, the median of its times was at least 20%
    above the median of the others, and on average by more than twice its spread over these windows.

    It also records the mean seconds of each tower every `every` steps.

    Args:
      places: for each tower where it is, such as '/gpu:2'.
      seconds: for each thread that takes steps, float32 [n, 2], for how long each of its n towers waited for its inputs
        and then took, 0 where that was not measured; empty if nothing is measured.
      every: steps between two records.
      metrics: the file that the records go to.
      say: function (word, text) that prints a line.
    """

    def __init__(self, places: Sequence[str], seconds: Sequence[tf.Tensor], every: int, metrics: Metrics,
                 say: Callable[[str, str], None]):
        self._places = places
        self._tower_seconds = seconds
        self._every = every
        self._metrics = metrics
        self._sum, self._count, self._is_first = 0.0, 0, True  # of the steps since the last record
        self._say = say
        self._seconds = []  # each tower's in the steps of the current window
        # For each tower the median of its seconds in each window, and how many times that of the others it was.
        self._windows = [collections.deque(maxlen=_WINDOWS) for _ in places]
        self._named = np.zeros(len(places), bool)

    def also(self, step, thread):
        return dict(seconds=self._tower_seconds[thread]) if self._tower_seconds else {}

    def after_step(self, step, results):
        if 'seconds' not in results:
            return
        taken = results['seconds'][:, 1]
        seconds = np.zeros(len(self._places))
        seconds[results['thread']:results['thread'] + len(taken)] = taken
        self._record(step, seconds)
        if len(self._places) < 2:
            return
        self._seconds.append(seconds)
        if len(self._seconds) * len(taken) < _STEPS * len(self._places):  # in `async`, a step is of one tower
            return
        medians = np.array([np.median(each[each > 0]) if each.any() else 0 for each in np.stack(self._seconds, 1)])
        self._seconds.clear()
        measured = np.flatnonzero(medians)
        if len(measured) < 2:
            return
        for k, ratio in zip(measured, medians[measured] / medians_of_others(medians[measured])):
            self._windows[k].append((medians[k], ratio))
            self._judge(k)

    def _record(self, step, seconds):
        """Records the mean of each tower's seconds since the last record, to the microsecond; 0 if it took no step."""
        self._sum, self._count = self._sum + seconds, self._count + (seconds > 0)
        if is_due := due(self._every, step):
            means = self._sum / np.maximum(self._count, 1)
            self._metrics.add(TOWERS, step, tower_seconds=means.round(6).tolist())
        if is_due or self._is_first:  # the first step is a warm-up
            self._sum, self._count, self._is_first = 0.0, 0, False

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
            taken, ratio = np.median(seconds), np.median(ratios)
            if self._named[k]:
                times = f'{ratio:.0f}' if ratio >= 10 else f'{ratio:.1f}'
                does_not_wait = len(self._tower_seconds) > 1  # in `async`
                cost = '' if does_not_wait else f'; each step waits {taken - taken / ratio:.3f} s for it'
                remedy = 'other devices' + ', or --variable_update=async,' * (not does_not_wait)
                self._say('slow', f'{tower} takes {taken:.3f} s, {times} times as long as the others, in {slow} of the '
                                  f'last {len(ratios)} windows of {_STEPS} steps{cost}; the device is slower, or other '
                                  f'programs use it: --explain looks closer, {remedy} may help')
            else:
                self._say('recovered', f'{tower} is no longer slower than the others')


def medians_of_others(values: np.ndarray) -> np.ndarray:
    """Returns for each of at least two values the median of the others."""
    ordered = np.sort(values)
    # The others are all but one, so what comes after that one in the order moves down by a place.
    middle = [(len(values) - 2) // 2, (len(values) - 1) // 2]
    lower, upper = (np.where(values <= ordered[i], ordered[i + 1], ordered[i]) for i in middle)
    return (lower + upper) / 2
