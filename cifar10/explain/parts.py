"""The parts that a step is divided into. This file knows their names, but not how they are measured."""
from typing import NamedTuple

import numpy as np

# The parts of a step, in their order. Where gradients are all-reduced, transfers and averaging are one; in `mirrored`
# so are the towers, the all-reduce and the update.
INPUT, TOWERS, TRANSFERS, AVERAGING, ALL_REDUCE, UPDATE, BETWEEN = (
    'input', 'towers', 'transfers', 'averaging', 'all-reduce', 'update', 'between')
REPLICAS = 'replicas'


class Lap(NamedTuple):
    """One step.

    Attributes:
      seconds: of the step.
      parts: the seconds of each part, by its name; their sum is `seconds`.
      devices: float64 [groups], the seconds that the towers of each group of devices computed; [0] if not measured.
      bars: (group, name, start, end) of what each group did, seconds from the start of the step; and for the CPU that
        averages and updates, with the group -1.
    """
    seconds: float
    parts: dict[str, float]
    devices: np.ndarray
    bars: list[tuple[int, str, float, float]]
