"""Measuring kinds of steps: they take turns, so that a change of the machine's speed touches all of them."""
import statistics
from collections.abc import Collection, Mapping

import numpy as np

from cifar10.tools.explain.moments import Lap
from cifar10.tools.explain.report import Timing

_ROUNDS = 5  # repeats of each measurement
_FEWEST, _MOST = 2, 200  # steps in a repeat
_BEFORE = 6  # steps of a kind before any is measured, at least
_SETTLES = 3  # in how many steps' time a variant settles, where the input is slow
# In this many steps TensorFlow learns which operations are too short to hand them to another thread; until then, steps
# of many short operations take longer.
_LEARNING = 100
_WARM_UP = 1 / 40  # of the seconds to measure, for each cell at most: long steps have few short operations


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
      laps: {name of a traced cell: its traced steps}.
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
                self.laps[name] += cells[name][0].laps(counts[name])

    def timing(self, name: str) -> Timing:
        """Returns the Timing of a cell."""
        return Timing.of(self.seconds[name])

    def longer(self, name: str, other: str) -> Timing:
        """Returns by how many seconds a step of one cell is longer than that of another, in the same repeats."""
        return Timing.of(np.subtract(self.seconds[name], self.seconds[other]).tolist())

    def lap(self, name: str) -> Lap:
        """Returns the means of a traced cell's steps, without bars. Tracing makes steps a little longer."""
        laps = self.laps[name]
        parts = {part: statistics.mean(lap.parts[part] for lap in laps) for part in laps[0].parts}
        seconds, back = (statistics.mean(each) for each in zip(*((lap.seconds, lap.back) for lap in laps)))
        return Lap(seconds, parts, np.mean([lap.devices for lap in laps], 0), back, [])


def _warm_up(step, seconds):
    """Returns how many steps, each of `step` seconds, to take before any is measured."""
    return min(_LEARNING, int(_WARM_UP * seconds / step))
