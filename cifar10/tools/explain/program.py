"""`--explain`: trains as configured for some time, beside the run, and prints where the time of a step goes.

The parts of a step come from traces. Steps that leave something out take turns with the steps as they are.
"""
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cifar10.base.console import Line, say, say_all
from cifar10.base.errors import UsageError
from cifar10.base.signals import Termination
from cifar10.run import failures
from cifar10.settings.training import TrainSettings
from cifar10.tools.explain.measure import (
    NO_UPDATE,
    SAME_BATCH,
    STEP,
    Measurement,
    Training,
    expected_seconds,
    group_names,
    measure,
)
from cifar10.tools.explain.moments import BETWEEN, TOWERS, TRANSFERS
from cifar10.training import graph, trainer
from cifar10.training.description import describe
from cifar10.training.start import refuse_other_images

_SECONDS = 20  # of measuring; the graph is built before
_LITTLE = 0.05  # the share of a step by which the sum of its parts may differ from it


def explain(settings: TrainSettings, termination: Termination | None = None, devices: Any = None,
            before_session: Callable[[], None] | None = None, seconds: float = _SECONDS) -> None:
    """Measures the configured training and prints where the time of its steps goes. Writes no file.

    Args:
      settings: of the run. The training starts from its newest checkpoint, if it has one.
      termination: not used: there is nothing to save, so a signal ends the program immediately.
      devices, before_session: as `trainer.train` takes them.
      seconds: how long to measure, apart from the time to build the graph.
    """
    del termination
    if not graph.can_time(settings.towers):
        raise UsageError('--explain reads clocks, which TF_DETERMINISTIC_OPS=1 forbids; unset it')
    start = trainer.prepared(settings, devices)
    trainer.go_through(start, (*trainer.PLANNING, refuse_other_images, describe))
    with failures.plain_errors():
        training = Training(start.plan, start.restored)
        if before_session:
            before_session()
        with training.opened():
            expected = expected_seconds(training, seconds)
            say('measuring', f'steps as they are, and with something left out, in turn, for about {expected:.0f} s')
            measurement = measure(training, seconds)
    say_all([*step_lines(measurement), *variant_lines(measurement)])


def step_lines(measurement: Measurement) -> list[Line]:
    """Returns the lines of a step, its parts, and the gap between their sum and the step."""
    step, parts = measurement.timings[STEP], measurement.lap.parts
    seconds, places = step.median, _digits(step.median)
    remarks = _remarks(measurement)
    lines = [Line('a step', f'{seconds:.{places}f} s, {measurement.plan.examples_per_step / seconds:,.0f} images/s')]
    for name, part in {**parts, 'gap': seconds - sum(parts.values())}.items():
        text = f"  {name:<10} {part:.{places}f} {part / seconds:>4.0%}   {remarks.get(name, '')}"
        lines.append(Line('', text.rstrip()))
    return lines


def _remarks(measurement):
    """Returns {part: what its line says at the end}."""
    plan, lap, names = measurement.plan, measurement.lap, group_names(measurement.plan)
    step, traced = measurement.timings[STEP], measurement.traced
    places = _digits(step.median)
    remarks = {TRANSFERS: f'variables out and gradients back, {measurement.megabytes:.1f} MB a step',
               BETWEEN: 'session calls' + (', averages of the copies' if plan.mode.drifts else ''),
               'gap': 'from the sum of the parts ({} in steps with a trace) to the step ({})'.format(
                   *(f'{each.low:.{places}f}-{each.high:.{places}f}' for each in (traced, step)))}
    is_apart = traced.low > step.high or traced.high < step.low
    if is_apart and abs(traced.median - step.median) > _LITTLE * step.median:
        remarks['gap'] += ': too much to rely on the parts; try again while nothing else uses the machine'
    if len(names) > 1:
        remarks[TOWERS] = '  '.join(f'{name} {seconds:.{places}f}' for name, seconds in zip(names, lap.devices))
        # Over a network a tower computes while variables are still on their way, and that time counts as transfers. So
        # the tower that gets them last seems the fastest.
        if not (plan.devices.target and measurement.megabytes):
            slowest = int(np.argmax(lap.devices))
            above = lap.devices[slowest] / np.median(np.delete(lap.devices, slowest)) - 1
            remarks[TOWERS] += f'  (slowest: {names[slowest]}, {above:.0%} above the median of the others)'
    return remarks


def variant_lines(measurement: Measurement) -> list[Line]:
    """Returns the lines of the steps that leave something out, with how much longer they take than a step."""
    step = measurement.timings[STEP].median
    left_out = {SAME_BATCH: 'one batch again and again, so without input', NO_UPDATE: 'without the update'}
    lines = []
    for kind, timing in measurement.timings.items():
        if kind == STEP:
            continue
        median, low, high = (f'{each:.{_digits(step)}f}' for each in timing)
        word = kind if kind in left_out else 'one device'
        what = left_out.get(kind, f'{kind} alone, without averaging and update')
        lines.append(Line(word, f'{median} ({timing.median / step - 1:+.0%}; {low}-{high})  {what}'))
    return lines


def _digits(seconds):
    """Returns how many decimals show three digits of some seconds, at least 3."""
    return max(3, 2 - math.floor(math.log10(seconds))) if seconds > 0 else 3
