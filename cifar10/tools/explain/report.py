"""The lines of `--explain`: the parts of a step, the changes that would make it shorter, and a piece of advice."""
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_LITTLE = 0.05  # the share of a step below which a saving is not worth advice


class Timing(NamedTuple):
    """Seconds of a step: the median of some repeats, with the lowest and the highest."""
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> 'Timing':
        """Returns the Timing of repeats."""
        return cls(statistics.median(seconds), min(seconds), max(seconds))

    def __add__(self, seconds: float) -> 'Timing':
        return Timing(*(each + seconds for each in self[:]))

    def without(self, saved: 'Timing') -> 'Timing':
        """Returns the Timing of a step that is shorter by so many seconds, with their range."""
        return Timing(*(self.median - seconds for seconds in (saved.median, saved.high, saved.low)))


class Would(NamedTuple):
    """How long a step would take without a cause.

    Attributes:
      cause: what is removed, a `causes.Cause`.
      timing: of the step without it.
      scale: how many times as many images the step then has.
      how: a phrase that says how it is removed: 'with --precision=bf16'.
    """
    cause: Any
    timing: Timing
    scale: float
    how: str


def step_lines(seconds: float, images: int, parts: Mapping[str, tuple[float, str]]) -> list[str]:
    """Returns the lines of a step, its parts, and the gap between their sum and the step.

    Args:
      seconds: of the step.
      images: in a step.
      parts: (seconds, remark) of each part, by its name, from other steps.
    """
    places = digits(seconds)
    lines = [f'a step     {seconds:.{places}f} s, {images / seconds:,.0f} images/s']
    gap = seconds - sum(part for part, _ in parts.values())
    rows = {**parts, 'gap': (gap, 'from the sum of the parts, measured in steps with a trace, to the step')}
    for name, (part, remark) in rows.items():
        lines.append(f'  {name:<10} {part:.{places}f} {part / seconds:>4.0%}   {remark}'.rstrip())
    return lines


def would_lines(seconds: float, woulds: Sequence[Would]) -> list[str]:
    """Returns a line for each thing that would change a step, the largest saving first.

    Args:
      seconds: of the step as it is.
      woulds: what it would take.
    """
    places = digits(seconds)
    lines = []
    for would in by_saving(seconds, woulds):
        change = f'{-saving(seconds, would):+.0%}' + (' per image' if would.scale != 1 else '')
        median, low, high = (f'{each:.{places}f}' for each in would.timing)
        doubt = ', uncertain' if is_uncertain(seconds, would) else ''
        lines.append(f"{'' if lines else 'would be':<10} {median} ({change}; {low}-{high}{doubt})  {would.how}")
    return lines


def is_uncertain(seconds: float, would: Would) -> bool:
    """Returns whether the repeats disagree on whether a step would be shorter or longer."""
    return would.timing.low < would.scale * seconds < would.timing.high


def saving(seconds: float, would: Would) -> float:
    """Returns the share of the time for an image that would be saved; negative if it would take longer."""
    return 1 - would.timing.median / would.scale / seconds


def by_saving(seconds: float, woulds: Sequence[Would]) -> list[Would]:
    """Returns the changes of a step, the largest saving first and uncertain ones last."""
    return sorted(woulds, key=lambda would: (is_uncertain(seconds, would), -saving(seconds, would)))


def advice(seconds: float, woulds: Sequence[Would], busy: float) -> str:
    """Returns the last line: the cause whose removal would save most.

    Args:
      seconds: of the step as it is.
      woulds: what it would take.
      busy: the share of the step in which the towers compute.
    """
    best = by_saving(seconds, woulds)[:1]
    if not best or saving(seconds, best[0]) < _LITTLE or is_uncertain(seconds, best[0]):
        return (f'advice     nothing that was tried certainly saves {_LITTLE:.0%} of a step; the towers are busy '
                f'{busy:.0%} of it, so what remains are faster devices or a smaller network')
    cause = best[0].cause
    return f'advice     {cause.name}: {cause.advice.format(how=best[0].how)}'


def digits(seconds: float) -> int:
    """Returns how many decimals show three digits of some seconds, at least 3."""
    return max(3, 2 - math.floor(math.log10(seconds))) if seconds > 0 else 3
