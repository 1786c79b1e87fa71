"""`--explain`: trains as configured for some time, beside the run, and prints where the time of a step goes.

The parts of a step come from traces. What a step would take comes from short trainings with one thing changed or left
out, which take turns with the training as it is.
"""
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np

from cifar10.base.console import say
from cifar10.base.registry import UPDATE_MODES
from cifar10.base.signals import Termination
from cifar10.parallel.devices import Devices
from cifar10.run import failures
from cifar10.settings.training import TrainSettings
from cifar10.tools import timeline
from cifar10.tools.explain import ablations, report
from cifar10.tools.explain.ablations import FEWER, MORE
from cifar10.tools.explain.forecast import Measured, forecast, over_a_link
from cifar10.tools.explain.measure import Figures, most_seconds
from cifar10.tools.explain.parts import ALL_REDUCE, BETWEEN, REPLICAS, TOWERS, TRANSFERS
from cifar10.tools.explain.variant import SAME_BATCH, STEP, Variant
from cifar10.training import loop
from cifar10.training.plan import decide, describe, refuse_other_images

_SECONDS = 40  # of measuring; building the graphs may take as long again
_UNEQUAL = 0.9  # times the median of the others: a tower that updates less often than this is named
_LINKS = {'1 Gbit/s': 125.0, '10 Gbit/s': 1250.0}  # megabytes a second


def explain(settings: TrainSettings, termination: Termination | None = None, devices: Devices | None = None,
            before_session: Callable[[], None] | None = None, seconds: float = _SECONDS) -> None:
    """Measures the configured training and prints where the time of its steps goes. Writes no file but `--plot`.

    Args:
      settings: of the run. The training starts from its newest checkpoint, if it has one.
      termination: not used: there is nothing to save, so a signal ends the program immediately.
      devices, before_session: as `training.train` takes them.
      seconds: how long to measure, apart from the time to build graphs.
    """
    del termination
    loop.refuse_without_clock(settings.towers)
    start = loop.prepared(settings, devices)
    loop.decide(start, (decide, refuse_other_images, describe))
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
    tries, cells, alone = ablations.tries(base), ablations.cells(base), ablations.alone(base)
    kinds = 1 + len(cells) + len(alone) + sum(4 if name == MORE else 2 for name in tries)
    _announce(base, len(tries) * building, kinds, seconds)
    if ablations.has_slow_device(base):
        cells.update(alone)
    others = ablations.others(base, tries, variant)
    cells.update((name, (other, STEP)) for name, other in others.items())
    traced = [STEP, *(name for name in (FEWER, MORE) if name in others)]
    pauses = ablations.pauses(base)
    figures = Figures(cells, traced, seconds)
    costs = ablations.costs(base, figures, pauses)
    cost = sum(costs.values())
    step = figures.timing(STEP).median + cost
    parts = figures.lap(STEP).parts
    parts[BETWEEN] += cost
    woulds = ablations.woulds(base, figures, costs, others)
    remarks = _remarks(base, figures, costs)
    lines = report.step_lines(step, plan.examples_per_step,
                              {name: (part, remarks.get(name, '')) for name, part in parts.items()})
    lines += report.would_lines(step, woulds)
    one_cost = ablations.cost_of(costs, others[FEWER].plan) if FEWER in others else cost
    lines += _forecast_lines(base, figures, cost, one_cost)
    lines.append(report.advice(step, woulds, parts.get(TOWERS, parts.get(REPLICAS, 0)) / step))
    for line in lines:
        say(line)
    if plan.settings.run.plot:
        _draw(plan, sorted(figures.laps[STEP], key=lambda lap: lap.seconds))


def _announce(base, building, kinds, seconds):
    """Says how long it takes at most to build graphs and to measure so many kinds of steps."""
    base.settle()
    whole = building + most_seconds(min(base.take(2)), kinds, seconds)
    say(f'measuring  steps as they are, and with one thing changed or left out, in turn: {whole:.0f} s at most')


def _remarks(base, figures, costs):
    """Returns {part: what its line says at the end}."""
    devices = base.plan.devices
    remarks = {}
    computes = figures.lap(STEP).devices
    if len(computes) > 1:
        names = ['+'.join(group) for group in devices.groups]
        places = report.digits(figures.timing(STEP).median)
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
    reports = [f'{cause.name} {seconds:.4f}' for cause, seconds in costs.items() if seconds > 5e-5]
    remarks[BETWEEN] = ', '.join(['session calls and log lines', *reports])
    return remarks


def _forecast_lines(base, figures, cost, one_cost):
    """Returns the lines that compare the step with that of one device, and forecast more devices and machines.

    `cost` and `one_cost` are added to a step as it is, and to one of one device.
    """
    devices = base.plan.devices
    now, parts = len(devices.groups), len(devices.groups[0])
    if not {FEWER, MORE} & set(figures.seconds):
        return []
    name = FEWER if FEWER in figures.seconds else MORE
    one, several = _measured(figures, STEP, now), _measured(figures, name, 1 if name == FEWER else 2)
    if name == FEWER:
        one, several = several, one
    shared = '' if devices.on_gpus or devices.target else f', sharing {len(os.sched_getaffinity(0))} CPU cores'
    lines = []
    if name == FEWER:
        alone = one.seconds + one_cost
        lines.append(f'one device {alone:.3f} s a step; {now} devices train '
                     f'{now * alone / (several.seconds + cost):.2f}x as many images a second{shared}')
    if REPLICAS in one.parts:
        return lines  # a step whose parts are not known cannot be forecast
    step = figures.timing(STEP).median + cost
    waits = figures.longer(STEP, SAME_BATCH).low > ablations.NOTED * step
    input_seconds = figures.timing(STEP).median / now if waits else 0.0
    cores = float('inf') if devices.target else len(os.sched_getaffinity(0))
    ahead = []

    def add(seconds, times, what):
        """Adds a step with so many times as many images."""
        ahead.append(f'{seconds:.3f} s with {what}: {times * step / seconds:.2f}x as many images a second as now')
    for n in (2, 4):
        seconds = forecast(one, several, n * now, cores, name == MORE, input_seconds=input_seconds) + cost
        add(seconds, n, f'{n * now * parts} such devices here')
    if not devices.target:
        seconds = forecast(one, several, 2 * now, cores, name == MORE, 2, input_seconds) + cost
        for link, speed in _LINKS.items():
            # Copies are all-reduced once in so many steps, and gradients in every step.
            steps = base.plan.settings.towers.local_steps
            linked = over_a_link(seconds, devices.num_towers, now, base.megabytes / (steps or 1), speed,
                                 bool(steps) or base.moments.averaging == ALL_REDUCE)
            add(linked, 2, f'two such machines at {link}')
    return lines + [f"{'' if i else 'forecast':<10} {line}" for i, line in enumerate(ahead)]


def _measured(figures, name, devices):
    """Returns a cell's step as the forecast takes it."""
    return Measured(devices, figures.timing(name).median, figures.lap(name).parts, statistics.median(figures.cpu[name]))


def _asynchronous(plan, variant, seconds):
    """Measures a training whose towers update on their own, and prints what can be said about it."""
    begin = time.perf_counter()
    base = variant(plan)
    _announce(base, time.perf_counter() - begin + seconds / 2, 1, seconds / 2)
    synchronous = next(name for name in UPDATE_MODES if UPDATE_MODES.load(name).synchronous)
    other = variant(ablations.changed(plan, variable_update=synchronous))
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
