"""The parts that a step is divided into. This file knows their names, but not how they are measured."""
from typing import NamedTuple

import numpy as np

# The parts of a step, in their order. ALL_REDUCE takes the place of TRANSFERS and AVERAGING in `replicated`, and
# REPLICAS that of all parts from TOWERS to UPDATE in `mirrored`.
INPUT, TOWERS, TRANSFERS, AVERAGING, ALL_REDUCE, UPDATE, BETWEEN = (
    'input', 'towers', 'transfers', 'averaging', 'all-reduce', 'update', 'between')
REPLICAS = 'replicas'


class Lap(NamedTuple):
    """One step.

    Attributes:
      seconds: of the step.
      parts: the seconds of each part, by its name; their sum is `seconds`.
      devices: float64 [groups], the seconds that the towers of each group of devices computed; of shape [0] if they
        were not measured.
      back: the seconds of TRANSFERS in which gradients are on their way; the others are those of variables.
      bars: (group, name, start, end) of what each group did, in seconds from the start of the step. Group -1 is the CPU
        that averages and updates.
    """
    seconds: float
    parts: dict[str, float]
    devices: np.ndarray
    back: float
    bars: list[tuple[int, str, float, float]]
