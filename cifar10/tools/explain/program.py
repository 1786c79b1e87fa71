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

from cifar10.base.console import say
from cifar10.base.errors import UsageError, reason
from cifar10.base.registry import UPDATE_MODES
from cifar10.base.signals import Termination
from cifar10.run import failures
from cifar10.settings.training import TrainSettings
from cifar10.tools import timeline
from cifar10.tools.explain import report
from cifar10.tools.explain.causes import CAUSES, FEWER, Found, cell, pauses
from cifar10.tools.explain.measure import Figures, most_seconds
from cifar10.tools.explain.moments import ALL_REDUCE, BETWEEN, REPLICAS, TOWERS, TRANSFERS
from cifar10.tools.explain.variant import STEP, Variant
from cifar10.training import graph, trainer
from cifar10.training.plan import decide, describe, plan_of, refuse_other_images

_SECONDS = 40  # of measuring; building the graphs may take as long again
_UNEQUAL = 0.9  # times the median of the others: a tower that updates less often than this is named


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
    trainer.decide(start, (decide, refuse_other_images, describe))
    plan = start.plan
    with failures.plain_errors(), tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        def variant(plan, **options):
            made = Variant(plan, tempfile.mkdtemp(dir=folder), before_session, **options)
            opened.callback(made.close)
            return made
        if plan.mode.synchronous:
            _synchronous(plan, variant, seconds)
        else:
            _asynchronous(plan, variant, seconds)


def _synchronous(plan, variant, seconds):
    """Measures a training whose towers step together, and prints."""
    begin = time.perf_counter()
    base = variant(plan)
    building = time.perf_counter() - begin
    causes = [cause for cause in CAUSES if cause.applies(plan)]
    tries = {name: (changes, cause) for cause in causes for name, changes in cause.tries(plan).items()}
    tries.update(_fewer_devices(plan))
    kinds = list(dict.fromkeys(kind for cause in causes for kind in cause.kinds(base)))
    _announce(base, len(tries) * building, 2 + len(kinds) + 2 * len(tries), seconds)
    others = _others(base, tries, variant)
    pauses_of_base = pauses(base)
    cells = {cell(*kind): (base, *kind) for kind in [(STEP,), *kinds]}
    cells.update((name, (other, STEP)) for name, other in others.items())
    found = Found(base, others, Figures(cells, [name for name in (STEP, FEWER) if name in cells], seconds),
                  pauses_of_base)
    step, woulds = found.step.median, found.woulds()
    parts = found.figures.lap(STEP).parts
    parts[BETWEEN] += step - found.figures.timing(STEP).median
    remarks = _remarks(found)
    lines = report.step_lines(step, plan.examples_per_step,
                              {name: (part, remarks.get(name, '')) for name, part in parts.items()})
    lines += report.would_lines(step, woulds)
    if FEWER in others:
        alone, count = found.timing(FEWER, others[FEWER].plan).median, len(plan.devices.groups)
        cores = len(os.sched_getaffinity(0))
        shared = '' if plan.devices.on_gpus or plan.devices.target else f', sharing {cores} CPU cores'
        lines.append(f'one device {alone:.3f} s a step; {count} devices train {count * alone / step:.2f}x as many '
                     f'images a second{shared}')
    lines.append(report.advice(step, woulds, parts.get(TOWERS, parts.get(REPLICAS, 0)) / step))
    for line in lines:
        say(line)
    if plan.settings.run.plot:
        _draw(plan, sorted(found.figures.laps[STEP], key=lambda lap: lap.seconds))


def _fewer_devices(plan):
    """Returns the training with the first device only, as `_others` takes it; {} if there is no other."""
    groups = len(plan.devices.groups)
    each, rest = divmod(plan.devices.num_towers, groups)
    if groups == 1 or rest:
        return {}
    # In a cluster, a collective of one member would take the name of that of all members.
    mode = next(iter(UPDATE_MODES)) if plan.devices.target else plan.settings.towers.variable_update
    return {FEWER: (dict(num_towers=each, variable_update=mode), None)}


def _others(base, tries, variant):
    """Returns the trainings to compare with, by their names; says which ones are not possible here.

    Args:
      base: the training as it is.
      tries: {name: (the settings that differ, the Cause that the training is without, or None)}.
      variant: function that makes a Variant from a plan and its options.
    """
    result = {}
    for name, (changes, cause) in tries.items():
        try:
            plan = _changed(base.plan, base.plan.devices.with_towers(1) if name == FEWER else None, **changes)
            # Its slots are not those of the checkpoint: they get initial values, and the input the same position.
            is_new = 'optimizer' in changes
            result[name] = variant(plan._replace(checkpoint=None) if is_new else plan,
                                   position=base.position if is_new else None, cause=cause)
        except (tf.errors.OpError, UsageError, AttributeError, TypeError, ValueError) as error:
            # A network of the user's own may fail in ways of its own, for example where variables become tensors.
            say(f'left out   {name}: {reason(error)}')
    return result


def _changed(plan, devices=None, **changes):
    """Returns a plan with some settings, or the devices, changed. It never evaluates."""
    settings = plan.settings.replace(**changes, eval_steps=0)
    return plan_of(settings, plan.data, devices or plan.devices, plan.checkpoint, plan.step)


def _announce(base, building, kinds, seconds):
    """Says how long it takes at most to build graphs and to measure so many kinds of steps."""
    base.settle()
    whole = building + most_seconds(min(base.take(2)), kinds, seconds)
    say(f'measuring  steps as they are, and with one thing changed or left out, in turn: {whole:.0f} s at most')


def _remarks(found):
    """Returns {part: what its line says at the end}."""
    base, devices = found.base, found.base.plan.devices
    remarks = {}
    computes = found.figures.lap(STEP).devices
    if len(computes) > 1:
        names = ['+'.join(group) for group in devices.groups]
        places = report.digits(found.step.median)
        each = '  '.join(f'{name} {seconds:.{places}f}' for name, seconds in zip(names, computes))
        remarks[TOWERS] = each
        # Over a network a tower computes while variables are still on their way, and that time counts as transfers. So
        # the tower that gets them last seems the fastest.
        if not (devices.target and base.moments.megabytes):
            slowest = int(np.argmax(computes))
            above = computes[slowest] / np.median(np.delete(computes, slowest)) - 1
            remarks[TOWERS] += f'  (slowest: {names[slowest]}, {above:.0%} above the median of the others)'
    travels = base.moments.megabytes
    remarks[TRANSFERS] = f'variables out and gradients back, {travels:.1f} MB a step'
    remarks[ALL_REDUCE] = f'{base.megabytes:.1f} MB of gradients on each of {len(devices.groups)} devices'
    remarks[REPLICAS] = 'towers, all-reduce and update, which tf.distribute runs as one'
    reports = [f'{cause.name} {seconds:.4f}' for cause, seconds in found.costs.items() if seconds > 5e-5]
    remarks[BETWEEN] = ', '.join(['session calls and log lines', *reports])
    return remarks


def _asynchronous(plan, variant, seconds):
    """Measures a training whose towers update on their own, and prints the results."""
    begin = time.perf_counter()
    base = variant(plan)
    _announce(base, time.perf_counter() - begin + seconds / 2, 1, seconds / 2)
    synchronous = next(name for name in UPDATE_MODES if UPDATE_MODES.load(name).synchronous)
    other = variant(_changed(plan, variable_update=synchronous))
    rates, updates, staleness = base.rates(seconds / 2)
    towers = len(rates)
    together = Figures({STEP: (other, STEP)}, [], seconds / 2).timing(STEP)
    images = plan.settings.towers.batch_size
    names = [plan.devices.place(k) for k in range(towers)]
    say(f'an update  {1 / updates:.3f} s, {images * updates:,.0f} images/s')
    for name, rate in zip(names, rates):
        say(f'  {name:<10} {rate:.2f} updates a second')
    say(f'  staleness  {staleness:.1f} updates of other towers between reading the variables and updating them')
    say(f'would be   {together.median:.3f} s for {towers} updates (now {towers / updates:.3f}; '
          f'{together.low:.3f}-{together.high:.3f})  with --variable_update={synchronous}')
    slowest = int(np.argmin(rates))
    share = rates[slowest] / np.median(np.delete(rates, slowest)) if towers > 1 else 1.0
    if share < _UNEQUAL:
        say(f'advice     {names[slowest]} is slow: it makes {share:.0%} as many updates as the others; in async no '
              'tower waits for it, but in a synchronous mode every step would')
    elif together.low <= towers / updates and staleness:
        takes = 'less' if together.high < towers / updates else 'no more'
        say(f'advice     use --variable_update={synchronous}: it takes {takes} time for the same images, and its '
            'gradients are not stale')
    elif staleness:
        say(f'advice     async trains {together.median * updates / towers:.2f}x as many images a second as '
            f'--variable_update={synchronous}, but its gradients are stale: compare the accuracies after the same '
            'number of images')
    else:
        say(f'advice     none of the gradients was stale, so async is {synchronous} here; see --explain of that mode')


def _draw(plan, laps):
    """Draws the step of median length as a timeline."""
    lap = laps[len(laps) // 2]
    names = ['+'.join(group) for group in plan.devices.groups]
    rows = [timeline.Row(name, [timeline.Bar(*bar[1:]) for bar in lap.bars if bar[0] == group and bar[3] > bar[2]])
            for group, name in [*enumerate(names), (-1, 'host')]]
    title = f'--variable_update={plan.settings.towers.variable_update}, a step of {lap.seconds:.3f} s'
    timeline.draw(plan.settings.run.plot, [(title, [row for row in rows if row.bars])])
    say(f'drawn      {plan.settings.run.plot}')
