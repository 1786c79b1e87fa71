"""`--explain`: trains as configured for some time, beside the run, and prints where the time of a step goes.

The parts of a step come from traces. What a step would take comes from short trainings with one thing changed or left
out, which take turns with the training as it is.
"""
import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import say, say_all
from cifar10.base.errors import UsageError, reason
from cifar10.base.registry import UPDATE_MODES
from cifar10.base.signals import Termination
from cifar10.run import failures
from cifar10.settings.training import TrainSettings
from cifar10.tools import timeline
from cifar10.tools.explain import causes, report
from cifar10.tools.explain.causes import FEWER
from cifar10.tools.explain.measure import Figures, most_seconds
from cifar10.tools.explain.moments import ALL_REDUCE, AVERAGING, BETWEEN, TOWERS, TRANSFERS
from cifar10.tools.explain.variant import STEP, SUMMARY, Variant
from cifar10.training import graph, trainer
from cifar10.training.description import describe
from cifar10.training.plan import plan_of
from cifar10.training.start import refuse_other_images

_SECONDS = 40  # of measuring; building the graphs may take as long again
# The kinds of bars of `--plot`, by the beginnings of their names.
_BARS = {'input': 'waits for its batch', 'variables': 'variables arrive', 'tower': 'tower computes',
         'gradients': 'gradients leave', 'waits': 'waits for the slowest device', AVERAGING: 'gradients are averaged',
         ALL_REDUCE: 'gradients are all-reduced', 'update': 'update'}


def explain(settings: TrainSettings, termination: Termination | None = None, devices: Any = None,
            before_session: Callable[[], None] | None = None, seconds: float = _SECONDS) -> None:
    """Measures the configured training and prints where the time of its steps goes. Writes no file but `--plot`.

    Args:
      settings: of the run. The training starts from its newest checkpoint, if it has one.
      termination: not used: there is nothing to save, so a signal ends the program immediately.
      devices, before_session: as `training.train` takes them.
      seconds: how long to measure, apart from the time to build graphs.
    """
    del termination
    graph.refuse_without_clock(settings.towers)
    start = trainer.prepared(settings, devices)
    trainer.take(start, (*trainer.PLANNING, refuse_other_images, describe))
    with failures.plain_errors(), tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        def variant(plan, may_diverge):
            made = Variant(plan, tempfile.mkdtemp(dir=folder), before_session, may_diverge)
            opened.callback(made.close)
            return made
        _explain(start.plan, variant, seconds)


def _explain(plan, variant, seconds):
    """Measures a training and prints.

    Args:
      plan: of the training.
      variant: function that makes a Variant from a plan and whether it may diverge.
      seconds: how long to measure.
    """
    begin = time.perf_counter()
    base = variant(plan, False)
    building = time.perf_counter() - begin
    tries = causes.tries(plan)
    fewer = _fewer_devices(plan)
    kinds = causes.kinds(base)
    _announce(base, building * (len(tries) + len(fewer)), len(kinds) + 1 + 2 * (len(tries) + len(fewer)), seconds)
    others = {}
    for name, (cause, changes) in tries.items():
        if other := _other(base, name, changes, variant):
            others[name] = cause, other
    alone = _other(base, FEWER, fewer, variant, plan.devices.with_towers(1)) if fewer else None
    costs = causes.pauses(base)
    cells = {causes.cell(*kind): (base, *kind) for kind in kinds}
    cells.update((name, (other, STEP)) for name, (_, other) in others.items())
    if alone:
        cells[FEWER] = alone, STEP
    figures = Figures(cells, [name for name in (STEP, FEWER) if name in cells], seconds)
    if every := plan.settings.reports.summary_steps:
        costs[causes.SUMMARIES] = max(figures.longer(SUMMARY, STEP).median, 0) / every
    cost = causes.cost_of(costs, plan)
    whole, traced, lap = figures.timing(STEP) + cost, figures.traced(STEP) + cost, figures.lap(STEP)
    step = whole.median
    woulds = causes.woulds(base, others, figures, costs)
    parts = {**lap.parts, BETWEEN: lap.parts[BETWEEN] + cost}
    remarks = _remarks(base, lap, step, costs)
    lines = report.step_lines(whole, traced, plan.examples_per_step,
                              {name: (part, remarks.get(name, '')) for name, part in parts.items()})
    lines += report.would_lines(step, woulds)
    if alone:
        takes = figures.timing(FEWER).median + causes.cost_of(costs, alone.plan)
        count, cores = len(plan.devices.groups), len(os.sched_getaffinity(0))
        shared = '' if plan.devices.on_gpus or plan.devices.target else f', sharing {cores} CPU cores'
        lines.append(f'one device {takes:.3f} s a step; {count} devices train {count * takes / step:.2f}x as many '
                     f'images a second{shared}')
    lines.append(report.advice(step, woulds))
    say_all(lines)
    if plan.settings.run.plot:
        _draw(plan, lap.bars)


def _fewer_devices(plan):
    """Returns the settings that differ in the training with the first device only; {} if there is no other device."""
    groups = len(plan.devices.groups)
    each, rest = divmod(plan.devices.num_towers, groups)
    if groups == 1 or rest:
        return {}
    # In a cluster, a collective of one member would take the name of that of all members.
    mode = next(iter(UPDATE_MODES)) if plan.devices.target else plan.settings.towers.variable_update
    return dict(num_towers=each, variable_update=mode)


def _other(base, name, changes, variant, devices=None):
    """Returns the Variant with other settings, and other devices if given; None, with a line, if it is not possible."""
    try:
        settings = base.plan.settings.replace(**changes, eval_steps=0)
        return variant(plan_of(settings, base.plan.data, devices or base.plan.devices, base.plan.checkpoint,
                               base.plan.step), True)
    except (tf.errors.OpError, UsageError, AttributeError, TypeError, ValueError) as error:
        # A network of the user's own may fail in ways of its own, for example where variables become tensors.
        say(f'left out   {name}: {reason(error)}')
        return None


def _announce(base, building, kinds, seconds):
    """Says how long it takes at most to build graphs and to measure so many kinds of steps."""
    base.settle()
    whole = building + most_seconds(min(base.take(2)), kinds, seconds)
    say(f'measuring  steps as they are, and with one thing changed or left out, in turn: {whole:.0f} s at most')


def _remarks(base, lap, step, costs):
    """Returns {part: what its line says at the end}."""
    devices, travels = base.plan.devices, base.moments.megabytes
    names = ['+'.join(group) for group in devices.groups]
    reports = [f'{cause} {seconds:.4f}' for cause, seconds in costs.items() if seconds > 5e-5]
    remarks = {TRANSFERS: f'variables out and gradients back, {travels:.1f} MB a step',
               BETWEEN: ', '.join(['session calls', *reports])}
    if len(names) > 1:
        places = report.digits(step)
        remarks[TOWERS] = '  '.join(f'{name} {seconds:.{places}f}' for name, seconds in zip(names, lap.devices))
        # Over a network a tower computes while variables are still on their way, and that time counts as transfers. So
        # the tower that gets them last seems the fastest.
        if not (devices.target and travels):
            slowest = int(np.argmax(lap.devices))
            above = lap.devices[slowest] / np.median(np.delete(lap.devices, slowest)) - 1
            remarks[TOWERS] += f'  (slowest: {names[slowest]}, {above:.0%} above the median of the others)'
    return remarks


def _draw(plan, bars):
    """Draws a step as a timeline."""
    names = ['+'.join(group) for group in plan.devices.groups]
    rows = [timeline.Row(name, [timeline.Bar(*bar[1:]) for bar in bars if bar[0] == group and bar[3] > bar[2]])
            for group, name in [*enumerate(names), (-1, 'host')]]
    title = f'--variable_update={plan.settings.towers.variable_update}, a step of median length'
    timeline.draw(plan.settings.run.plot, [(title, [row for row in rows if row.bars])], _BARS)
    say(f'drawn      {plan.settings.run.plot}')
