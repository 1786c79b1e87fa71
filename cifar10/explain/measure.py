"""Measuring kinds of steps: they take turns, so that a change of the machine's speed touches all of them."""
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np

from cifar10.explain.report import Timing
from cifar10.explain.variant import STEP, Variant

ROUNDS = 5  # repeats of each measurement
_FEWEST, _MOST = 3, 200  # steps in a repeat
# In this many steps TensorFlow learns which operations are too short to hand them to another thread; until then, steps
# of many short operations take longer.
_LEARNING = 100
_WARM_UP = 1 / 40  # of the seconds to measure, for each cell at most: long steps have few short operations


class Cell(NamedTuple):
    """Steps of one kind that a variant takes. For ONE_DEVICE, `group` is the number of the devices' group."""
    variant: Variant
    kind: str = STEP
    group: int = 0


class Figures:
    """Measures cells in turn, and holds what was measured.

    Args:
      cells: what to measure, by name.
      traced: names of cells whose steps are also traced.
      seconds: how long to measure, about.
      say: function that prints a line.

    Attributes:
      seconds: {name of a cell: the mean seconds of a step in each repeat}.
      cpu: the same for the seconds of all cores together in which this process computes.
      laps: {name of a traced cell: its traced steps}.
    """

    def __init__(self, cells: Mapping[str, Cell], traced: Collection[str], seconds: float,
                 say: Callable[[str], None]):
        self.seconds = {name: [] for name in cells}
        self.cpu = {name: [] for name in cells}
        self.laps = {name: [] for name in traced}
        fastest = {}
        for name, cell in cells.items():
            cell.variant.take(2, *cell[1:])  # the first optimises the graph
            fastest[name] = min(cell.variant.take(2, *cell[1:]))
            cell.variant.take(_warm_up(fastest[name], seconds), *cell[1:])
        for name in traced:
            cells[name].variant.laps(2 + _warm_up(2 * fastest[name], seconds))
        share = seconds / ROUNDS / (len(cells) + len(traced))
        counts = {name: min(max(round(share / each), _FEWEST), _MOST) for name, each in fastest.items()}
        planned = ROUNDS * sum(count * fastest[name] * (2 if name in traced else 1) for name, count in counts.items())
        kinds = f"{len(cells)} kind{'s' * (len(cells) > 1)} of steps"
        say(f'measuring  {kinds}, {ROUNDS} times each in turn: about {planned:.0f} s of steps')
        for _ in range(ROUNDS):
            for name, cell in cells.items():
                cell.variant.take(1, *cell[1:])  # the one after those of other cells finds nothing in the caches
                before = time.process_time()
                self.seconds[name].append(statistics.mean(cell.variant.take(counts[name], *cell[1:])))
                self.cpu[name].append((time.process_time() - before) / counts[name])
            for name in traced:
                self.laps[name] += cells[name].variant.laps(counts[name])

    def timing(self, name: str) -> Timing:
        """Returns the Timing of a cell."""
        return Timing.of(self.seconds[name])

    def longer(self, name: str, other: str) -> float:
        """Returns by how many seconds a step of one cell is longer than that of another: the median of the repeats.

        It is 0 where the repeats do not agree which of the two is longer.
        """
        differences = np.subtract(self.seconds[name], self.seconds[other])
        return statistics.median(differences) if (differences > 0).all() or (differences < 0).all() else 0.0

    def parts(self, name: str) -> dict[str, float]:
        """Returns the seconds of each part of a traced cell's step, which add up to the median of its steps.

        Tracing makes steps a little longer, so only the shares are taken from the traced steps.
        """
        laps = self.laps[name]
        return {part: self._mean(name, [lap.parts[part] for lap in laps]) for part in laps[0].parts}

    def devices(self, name: str) -> np.ndarray:
        """Returns `Lap.devices` of a traced cell's step, on the scale of `parts`."""
        return self._mean(name, [lap.devices for lap in self.laps[name]])

    def back(self, name: str) -> float:
        """Returns `Lap.back` of a traced cell's step, on the scale of `parts`."""
        return self._mean(name, [lap.back for lap in self.laps[name]])

    def _mean(self, name, values):
        """Returns the mean of a value of each traced step, as long as it would be in a step without a trace."""
        traced = statistics.mean(lap.seconds for lap in self.laps[name])
        return np.mean(values, 0) * (self.timing(name).median / traced)


def _warm_up(step, seconds):
    """Returns how many steps, each of `step` seconds, to take before any is measured."""
    return min(_LEARNING, int(_WARM_UP * seconds / step))
