from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Share:
    first: int
    end: int
    weight: float


def split_points(points: int, processes: int) -> list[Share]:
    borders = [p * points // processes for p in range(processes + 1)]
    return [Share(first, end, (end - first) / points) for first, end in zip(borders, borders[1:])]
