"""Measuring kinds of steps: they take turns, so that a change of the machine's speed touches all of them."""
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cifar10.tools.explain.moments import Lap, mean_lap

_ROUNDS = 5  # repeats of each measurement
_FEWEST, _MOST = 2, 200  # steps in a repeat
_BEFORE = 6  # steps of a kind before any is measured, at least
_SETTLES = 3  # in how many steps' time a variant settles, where the input is slow
# In this many steps TensorFlow learns which operations are too short to hand them to another thread; until then, steps
# of many short operations take longer.
_LEARNING = 100
_WARM_UP = 1 / 40  # of the seconds to measure, for each cell at most: long steps have few short operations


class Timing(NamedTuple):
    """Seconds of a step: the median of some repeats, with the lowest and the highest."""
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> 'Timing':
        """Returns the Timing of repeats."""
        return cls(float(np.median(seconds)), float(np.min(seconds)), float(np.max(seconds)))

    def __add__(self, seconds: float) -> 'Timing':
        return Timing(*(each + seconds for each in self[:]))

    def differs(self, other: 'Timing', share: float) -> bool:
        """Returns whether all repeats are above, or all below, those of another Timing, and the medians by a share."""
        apart = self.low > other.high or self.high < other.low
        return apart and abs(self.median - other.median) > share * other.median

    def without(self, saved: 'Timing') -> 'Timing':
        """Returns the Timing of a step that is shorter by so many seconds, with their range."""
        return Timing(*(self.median - seconds for seconds in (saved.median, saved.high, saved.low)))


def most_seconds(step: float, kinds: int, seconds: float) -> float:
    """Returns how long `Figures` takes at most, about: longer than it is asked to where steps are long.

    Args:
      step: the seconds of a step.
      kinds: how many kinds of steps there are; a kind with twice as many images counts as two, a traced one again.
      seconds: how long to measure.
    """
    each = max(seconds / _ROUNDS / kinds, _FEWEST * step)
    return kinds * (_BEFORE * step + seconds * _WARM_UP + _ROUNDS * (each + _SETTLES * step))


class Figures:
    """Measures cells in turn, and holds the results.

    Args:
      cells: what to measure, by name: (a Variant, the arguments of its `take` that choose a kind of steps).
      traced: names of cells whose steps are also traced; they take the kind STEP.
      seconds: how long to measure, about.

    Attributes:
      seconds: {name of a cell: the mean seconds of a step in each repeat}.
      laps: {name of a traced cell: the mean Lap of each repeat}. Tracing makes steps a little longer.
    """

    def __init__(self, cells: Mapping[str, tuple], traced: Collection[str], seconds: float):
        self.seconds = {name: [] for name in cells}
        self.laps = {name: [] for name in traced}
        fastest = {}
        for name, (variant, *kind) in cells.items():
            variant.take(1, *kind)  # optimises the graph
            variant.settle(*kind)
            fastest[name] = min(variant.take(2, *kind))
            variant.take(_warm_up(fastest[name], seconds), *kind)
        for name in traced:
            cells[name][0].laps(2 + _warm_up(2 * fastest[name], seconds))
        share = seconds / _ROUNDS / (len(cells) + len(traced))
        counts = {name: min(max(round(share / each), _FEWEST), _MOST) for name, each in fastest.items()}
        for _ in range(_ROUNDS):
            for name, (variant, *kind) in cells.items():
                variant.settle(*kind)
                self.seconds[name].append(statistics.mean(variant.take(counts[name], *kind)))
            for name in traced:
                cells[name][0].settle()
                self.laps[name].append(mean_lap(cells[name][0].laps(counts[name])))

    def timing(self, name: str) -> Timing:
        """Returns the Timing of a cell."""
        return Timing.of(self.seconds[name])

    def traced(self, name: str) -> Timing:
        """Returns the Timing of the steps of a cell that were traced."""
        return Timing.of([lap.seconds for lap in self.laps[name]])

    def longer(self, name: str, other: str) -> Timing:
        """Returns by how many seconds a step of one cell is longer than that of another, in the same repeats."""
        return Timing.of(np.subtract(self.seconds[name], self.seconds[other]))

    def lap(self, name: str) -> Lap:
        """Returns the Lap of a traced cell's repeat of median length."""
        return sorted(self.laps[name], key=lambda lap: lap.seconds)[_ROUNDS // 2]


def _warm_up(step, seconds):
    """Returns how many steps, each of `step` seconds, to take before any is measured."""
    return min(_LEARNING, int(_WARM_UP * seconds / step))
