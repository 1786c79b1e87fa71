"""Ablations: what is tried to find out what a step would take, and what follows from it.

A cause is tried by a short training with another setting, by steps that leave something out, or, where neither is
possible, computed from the parts of the step.
"""
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import say
from cifar10.base.errors import UsageError, reason
from cifar10.base.registry import PRECISIONS, UPDATE_MODES
from cifar10.tools.explain import report
from cifar10.tools.explain.measure import Figures
from cifar10.tools.explain.parts import ALL_REDUCE, TOWERS, TRANSFERS
from cifar10.tools.explain.report import Cause, Timing, Would
from cifar10.tools.explain.variant import NO_UPDATE, ONE_DEVICE, SAME_BATCH, STEP, SUMMARY, TOWERS_ALONE, Variant
from cifar10.training.plan import Plan, hardware_has, plan_of

# Trainings that the forecast compares with: one has the first device only.
FEWER, MORE = 'one device', 'twice the towers'
_LOOKED_AT = 5  # steps, before anything is measured
_SLOWER = 1.1  # times the median of the others: a device that takes longer than this is also measured alone
_CHEAPEST = 'sgd'  # the optimizer with the fewest computations
NOTED = 0.025  # the share of a step below which a part or a saving is ignored


def has_slow_device(base: Variant) -> bool:
    """Takes a few steps; returns whether the towers of one device take longer in them than those of the others."""
    computes = np.median([lap.devices for lap in base.laps(_LOOKED_AT)], 0)
    return len(computes) > 1 and computes.max() > _SLOWER * np.median(np.delete(computes, computes.argmax()))


def cells(base: Variant) -> dict[str, tuple]:
    """Returns the kinds of steps to measure of the training as it is, by their names, as `Figures` takes them."""
    kinds = [STEP, SAME_BATCH]
    if base.moments.after_towers:
        kinds += [NO_UPDATE, TOWERS_ALONE]
    if base.plan.settings.reports.summary_steps:
        kinds.append(SUMMARY)
    return {kind: (base, kind) for kind in kinds}


def alone(base: Variant) -> dict[str, tuple]:
    """Returns the steps of each device alone, as `cells` does."""
    return {_alone(g): (base, ONE_DEVICE, g) for g in range(len(base.plan.devices.groups))}


def _alone(group):
    return f'{ONE_DEVICE} {group}'


def others(base: Variant, tries: Mapping[str, tuple], variant: Callable[..., Variant]) -> dict[str, Variant]:
    """Returns the trainings to compare with, by their names; prints which ones are not possible here.

    Args:
      base: the training as it is.
      tries: as `tries` returns them.
      variant: function that makes a Variant from a plan and its options.
    """
    result = {}
    for name, (changes, cause) in tries.items():
        devices = base.plan.devices.with_towers(1) if name == FEWER else None
        try:
            plan = changed(base.plan, devices, **changes)
            # Its slots are not those of the checkpoint: they get initial values, and the input the same position.
            is_new = 'optimizer' in changes
            result[name] = variant(plan._replace(checkpoint=None) if is_new else plan,
                                   position=base.position if is_new else None, cause=cause)
        except (tf.errors.OpError, UsageError, AttributeError, TypeError, ValueError) as error:
            # A network of the user's own may fail in ways of its own, for example where variables become tensors.
            say(f'left out   {name}: {reason(error)}')
    return result


def changed(plan: Plan, devices: Any = None, **changes: Any) -> Plan:
    """Returns a plan with some settings, or the devices, changed. It never evaluates."""
    settings = plan.settings.replace(**changes, eval_steps=0)
    return plan_of(settings, plan.data, devices or plan.devices, plan.checkpoint, plan.step)


def tries(base: Variant) -> dict[str, tuple[dict, Cause | None]]:
    """Returns the trainings to compare with, by their names.

    Returns:
      {name: (the settings that differ, the Cause that it removes, or None for those of the forecast)}.
    """
    plan = base.plan
    towers, devices = plan.settings.towers, plan.devices
    groups = len(devices.groups)
    tries = {}
    for name in UPDATE_MODES:
        mode = UPDATE_MODES.load(name)
        if groups > 1 and mode.synchronous and not mode.drifts and mode.spans_machines \
                and name != towers.variable_update:
            tries[f'--variable_update={name}'] = dict(variable_update=name), report.MODE
    for name in PRECISIONS:
        is_fast = hardware_has(name, devices.on_gpus) and not PRECISIONS.load(name).scales_loss
        if is_fast and name != towers.precision:
            tries[f'--precision={name}'] = dict(precision=name), report.PRECISION
    larger = 2 * towers.batch_size
    tries[f'--batch_size={larger}'] = dict(batch_size=larger), report.BATCH
    if plan.settings.recipe.optimizer != _CHEAPEST:
        tries[f'--optimizer={_CHEAPEST} (another recipe)'] = (
            dict(optimizer=_CHEAPEST, auxiliary_learning_rate=None, weight_decay=None), report.UPDATE)
    each, rest = divmod(devices.num_towers, groups)
    if groups > 1 and not rest:
        # In a cluster, a collective of one member would take the name of that of all members.
        mode = next(iter(UPDATE_MODES)) if devices.target else towers.variable_update
        tries[FEWER] = dict(num_towers=each, variable_update=mode), None
    elif groups == 1 and not plan.mode.one_tower_per_device:
        tries[MORE] = dict(num_towers=2 * each), None
    return tries


def pauses(base: Variant) -> dict[Cause, float]:
    """Returns the seconds that pauses between steps add to one on average; call it before all measurements.

    Steps that train on one batch again and again may diverge, and what diverged cannot be saved.
    """
    reports = base.plan.settings.reports
    result = {report.CHECKPOINTS: _second(base, base.save) / reports.save_steps}
    if reports.eval_steps:
        result[report.EVALUATION] = _second(base, base.evaluate) / reports.eval_steps
    if local_steps := base.plan.settings.towers.local_steps:
        result[report.COPIES] = _second(base, base.average) / local_steps
    return result


def _second(base, pause):
    """Returns the seconds that a pause between two steps takes the second time: only the first optimises a graph."""
    pause()
    base.take(1)
    begin = time.perf_counter()
    pause()
    return time.perf_counter() - begin


def costs(base: Variant, figures: Figures, pauses: Mapping[Cause, float]) -> dict[Cause, float]:
    """Returns the seconds that are added to a step, on average, by what happens only in some steps.

    Args:
      base: the training as it is.
      figures: what was measured.
      pauses: as `pauses` returns them.
    """
    every = base.plan.settings.reports.summary_steps
    summaries = {report.SUMMARIES: max(figures.longer(SUMMARY, STEP).median, 0) / every} if every else {}
    return {**summaries, **pauses}


def cost_of(costs: Mapping[Cause, float], plan: Plan) -> float:
    """Returns the seconds that are added to a step of a plan, of the costs of the training as it is."""
    averages = plan.mode.drifts and plan.devices.num_towers > 1
    return sum(cost for cause, cost in costs.items() if averages or cause is not report.COPIES)


def woulds(base: Variant, figures: Figures, costs: Mapping[Cause, float],
           others: Mapping[str, Variant]) -> list[Would]:
    """Returns what a step would take with each change that was tried or can be computed.

    Args:
      base: the training as it is.
      figures: what was measured.
      costs: as `costs` returns them.
      others: as `others` returns them.
    """
    cost = sum(costs.values())
    step = figures.timing(STEP) + cost
    lap = figures.lap(STEP)
    result = []
    for name, other in others.items():
        if other.cause:
            scale = other.plan.examples_per_step / base.plan.examples_per_step
            result.append(Would(other.cause, figures.timing(name) + cost_of(costs, other.plan), scale, f'with {name}'))

    def add(cause: Cause, timing: Timing, how: str) -> None:
        """Adds a step that is noticeably shorter, or that may be."""
        if timing.low < (1 - NOTED) * step.median:
            result.append(Would(cause, timing, 1, how))

    add(report.SLOW_INPUT, step.without(figures.longer(STEP, SAME_BATCH)),
        'with one batch again and again, so without input')
    if NO_UPDATE in figures.seconds:
        if not any(would.cause is report.UPDATE for would in result):
            add(report.UPDATE, step.without(figures.longer(STEP, NO_UPDATE)), 'without the update')
        exchange = figures.longer(NO_UPDATE, TOWERS_ALONE) + -lap.back
        cause = report.ALL_REDUCE if base.moments.averaging == ALL_REDUCE else report.AVERAGING
        add(cause, step.without(exchange), f'without the {cause.name}')
    if TRANSFERS in lap.parts and FEWER in figures.laps:
        # Towers begin to compute while variables are still on their way, and that time counts as transfers. One device
        # alone shows how long they compute.
        meanwhile = max(figures.lap(FEWER).parts[TOWERS] - lap.parts[TOWERS], 0)
        saved = Timing.of([lap.parts[TRANSFERS] - meanwhile])
        add(report.TRANSFERS, step.without(saved), 'if nothing had to travel (computed)')
    if _alone(0) in figures.seconds:
        slowest, saved = _saved(base, figures)
        add(report.SLOW_TOWER, step.without(saved), f'if {slowest} were as fast as the others (computed)')
    for cause, seconds in costs.items():
        add(cause, step.without(Timing.of([seconds])), f'without {cause.name} (computed)')
    return result


def _saved(base, figures):
    """Returns (the slowest device, the Timing by which a step would be shorter if it took the median of the others).

    Devices that share the cores of a CPU may be slow in the steps without being slow alone, so the smaller of the two
    differences counts.
    """
    groups = base.plan.devices.groups
    alone = np.array([figures.seconds[_alone(g)] for g in range(len(groups))])
    slowest = int(np.argmax(np.median(alone, 1)))
    most = alone[slowest] - np.median(np.delete(alone, slowest, 0), 0)
    saved = [lap.devices.max() - np.delete(lap.devices, slowest).max() for lap in figures.laps[STEP]]
    return '+'.join(groups[slowest]), Timing.of(np.minimum(np.mean(saved), most).tolist())
