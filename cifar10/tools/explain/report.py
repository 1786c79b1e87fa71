"""The lines of `--explain`: the parts of a step, the changes that would make it shorter, and a piece of advice."""
import math
from collections.abc import Mapping, Sequence

from cifar10.tools.explain.causes import ADVICE, LITTLE, Would
from cifar10.tools.explain.measure import Timing


def step_lines(step: Timing, traced: Timing, images: int, parts: Mapping[str, tuple[float, str]]) -> list[str]:
    """Returns the lines of a step, its parts, and the gap between their sum and the step.

    Args:
      step: the step.
      traced: the steps with a trace, from which the parts come.
      images: in a step.
      parts: (seconds, remark) of each part, by its name.
    """
    seconds, places = step.median, digits(step.median)
    lines = [f'a step     {seconds:.{places}f} s, {images / seconds:,.0f} images/s']
    gap = seconds - sum(part for part, _ in parts.values())
    sums, steps = (f'{each.low:.{places}f}-{each.high:.{places}f}' for each in (traced, step))
    why = f'from the sum of the parts ({sums} in steps with a trace) to the step ({steps})'
    if traced.differs(step, LITTLE):
        why += ': too much to rely on the parts; try again while nothing else uses the machine'
    for name, (part, remark) in {**parts, 'gap': (gap, why)}.items():
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
    for would in _by_saving(seconds, woulds):
        change = f'{-would.saving(seconds):+.0%}' + (' per image' if would.scale != 1 else '')
        median, low, high = (f'{each:.{places}f}' for each in would.timing)
        doubt = ', uncertain' if would.is_uncertain(seconds) else ''
        lines.append(f"{'' if lines else 'would be':<10} {median} ({change}; {low}-{high}{doubt})  {would.how}")
    return lines


def _by_saving(seconds, woulds):
    """Returns the changes of a step, the largest saving first and uncertain ones last."""
    return sorted(woulds, key=lambda would: (would.is_uncertain(seconds), -would.saving(seconds)))


def advice(seconds: float, woulds: Sequence[Would]) -> str:
    """Returns the last line: the cause whose removal would save most.

    Args:
      seconds: of the step as it is.
      woulds: what it would take.
    """
    best = _by_saving(seconds, woulds)[:1]
    if best and best[0].saving(seconds) >= LITTLE and not best[0].is_uncertain(seconds):
        return f'advice     {best[0].cause}: {ADVICE[best[0].cause].format(how=best[0].how)}'
    return f'advice     nothing that was tried certainly saves {LITTLE:.0%} of a step'


def digits(seconds: float) -> int:
    """Returns how many decimals show three digits of some seconds, at least 3."""
    return max(3, 2 - math.floor(math.log10(seconds))) if seconds > 0 else 3
