"""Causes of a long step, and how long a step would take without each of them.

A cause is tried by a short training with another setting, by steps that leave something out, or, where neither is
possible, computed from the parts of the step.
"""
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from cifar10.base.registry import PRECISIONS, UPDATE_MODES
from cifar10.tools.explain.measure import Figures, Timing
from cifar10.tools.explain.moments import ALL_REDUCE, AVERAGING, TOWERS, TRANSFERS
from cifar10.tools.explain.variant import NO_UPDATE, ONE_DEVICE, SAME_BATCH, STEP, SUMMARY, TOWERS_ALONE, Variant
from cifar10.training.decide import hardware_has
from cifar10.training.plan import Plan

MODE, PRECISION, SMALL_BATCH, HEAVY_UPDATE, SLOW_INPUT, SLOW_TOWER = (
    'update mode', 'precision', 'small batch', 'heavy update', 'slow input', 'slow tower')
SUMMARIES, CHECKPOINTS, EVALUATION, COPIES = 'summaries', 'checkpoints', 'evaluation', 'averages of the copies'
# What is wrong and, after a semicolon, what to do; {how} stands for `Would.how`.
ADVICE = {
    MODE: 'another update mode exchanges the same gradients in less time; train {how}',
    PRECISION: 'this hardware computes faster in another precision; train {how}',
    SMALL_BATCH: 'part of a step takes the same time whatever the batch size; give each tower more images: train {how}',
    HEAVY_UPDATE: 'the optimizer takes long to apply the gradients; use a cheaper one, or more images in each batch',
    SLOW_INPUT: 'the towers wait for their batches, because the CPU cannot make them fast enough; use a cheaper '
                'augmentation, a machine with more cores, or more machines',
    AVERAGING: 'the towers wait while their gradients are averaged; use --variable_update=replicated, or fewer towers '
               'with more images each',
    ALL_REDUCE: 'the devices wait while their gradients are all-reduced; use a faster link between them, or more '
                'images in each batch',
    TRANSFERS: 'much of a step is spent moving variables and gradients between devices; use '
               '--variable_update=replicated, a faster link, or more images in each batch',
    SLOW_TOWER: 'every step waits for one device; find out what else runs on it, or leave it out',
    SUMMARIES: 'summaries for TensorBoard take much of the time; use a larger --summary_steps',
    CHECKPOINTS: 'saving takes much of the time; use a larger --save_steps',
    EVALUATION: 'evaluation takes much of the time; use a larger --eval_steps',
    COPIES: 'averaging the copies takes much of the time; use a larger --local_steps'}

FEWER = 'one device'  # the training with the first device only
# The share of a step below which a saving is not worth advice, and so is a gap between a step and the sum of its parts.
LITTLE = 0.05
_NOTED = 0.025  # the share of a step below which a saving is ignored
_LOOKED_AT = 5  # steps, before anything is measured
_SLOWER = 1.1  # times the median of the others: a device that takes longer than this is also measured alone


class Would(NamedTuple):
    """How long a step would take without a cause.

    Attributes:
      cause: what is removed; a key of ADVICE.
      timing: of the step without it.
      scale: how many times as many images the step then has.
      how: a phrase that says how it is removed: 'with --precision=bf16'.
      from_right_parts: False if it is computed from the parts of a step, and these do not add up to the step.
    """
    cause: str
    timing: Timing
    scale: float
    how: str
    from_right_parts: bool = True

    def saving(self, seconds: float) -> float:
        """Returns the share of the time for an image that would be saved of a step; negative if it takes longer."""
        return 1 - self.timing.median / self.scale / seconds

    def is_uncertain(self, seconds: float) -> bool:
        """Returns whether the repeats disagree on whether a step would be shorter or longer, or the parts are wrong."""
        return not self.from_right_parts or self.timing.low < self.scale * seconds < self.timing.high


def tries(plan: Plan) -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns the trainings to compare with, by the flag that a person would give: (cause, settings that differ)."""
    towers = plan.settings.towers
    found = {}
    for name in UPDATE_MODES if len(plan.devices.groups) > 1 else ():
        mode = UPDATE_MODES.load(name)
        if mode.synchronous and not mode.drifts and not mode.uses_strategy and name != towers.variable_update:
            found[f'--variable_update={name}'] = MODE, dict(variable_update=name)
    for name in PRECISIONS:
        if (name != towers.precision and hardware_has(name, plan.devices.on_gpus)
                and not PRECISIONS.load(name).scales_loss):
            found[f'--precision={name}'] = PRECISION, dict(precision=name)
    found[f'--batch_size={2 * towers.batch_size}'] = SMALL_BATCH, dict(batch_size=2 * towers.batch_size)
    return found


def kinds(base: Variant) -> list[tuple]:
    """Returns the kinds of steps of the training as it is to measure, as the arguments of `Variant.take`."""
    found = [(STEP,), (SAME_BATCH,), (NO_UPDATE,), (TOWERS_ALONE,)]
    if base.plan.settings.reports.summary_steps:
        found.append((SUMMARY,))
    groups = range(len(base.plan.devices.groups))
    if len(groups) > 1:
        computes = np.median([lap.devices for lap in base.laps(_LOOKED_AT)], 0)
        if computes.max() > _SLOWER * np.median(np.delete(computes, computes.argmax())):
            found += [(ONE_DEVICE, g) for g in groups]
    return found


def cell(*kind: Any) -> str:
    """Returns the name of a kind of steps of the training as it is, in `Figures`."""
    return ' '.join(map(str, kind))


def pauses(base: Variant) -> dict[str, float]:
    """Returns the seconds that pauses between steps add to a step on average; call it before all measurements.

    Steps that train on one batch again and again may diverge, and what diverged cannot be saved.
    """
    reports, towers = base.plan.settings.reports, base.plan.settings.towers
    every = {CHECKPOINTS: (base.save, reports.save_steps), EVALUATION: (base.evaluate, reports.eval_steps),
             COPIES: (base.average, towers.local_steps if _has_copies(base.plan) else 0)}
    costs = {}
    for cause, (pause, steps) in every.items():
        if steps:
            pause()  # the first one optimises a graph
            base.take(1)
            begin = time.perf_counter()
            pause()
            costs[cause] = (time.perf_counter() - begin) / steps
    return costs


def _has_copies(plan):
    return plan.mode.drifts and plan.devices.num_towers > 1


def cost_of(costs: Mapping[str, float], plan: Plan) -> float:
    """Returns the seconds that are added to a step of a plan, of the costs of the training as it is."""
    return sum(cost for cause, cost in costs.items() if cause != COPIES or _has_copies(plan))


def woulds(base: Variant, others: Mapping[str, tuple[str, Variant]], figures: Figures,
           costs: Mapping[str, float]) -> list[Would]:
    """Returns what a step would take without each cause that was tried, or that makes it noticeably longer.

    Args:
      base: the training as it is.
      others: the trainings with other settings, by their flags: (cause, Variant).
      figures: of all of them.
      costs: the seconds that causes add to a step on average, as they happen only in or after some steps.
    """
    result = []
    for name, (cause, other) in others.items():
        scale = other.plan.examples_per_step / base.plan.examples_per_step
        result.append(Would(cause, figures.timing(name) + cost_of(costs, other.plan), scale, f'with {name}'))
    step = figures.timing(STEP) + cost_of(costs, base.plan)
    parts_are_wrong = figures.traced(STEP).differs(figures.timing(STEP), LITTLE)
    for cause, saved, how in [*_left_out(base, figures), *_computed(base, figures, costs)]:
        timing = step.without(saved)
        if timing.low < (1 - _NOTED) * step.median:
            is_from_parts = cause in (TRANSFERS, SLOW_TOWER) or (cause == AVERAGING and base.moments.megabytes)
            result.append(Would(cause, timing, 1, how, not (is_from_parts and parts_are_wrong)))
    return result


def _left_out(base, figures):
    """Yields (cause, by how many seconds a step would be shorter, how) for what some kinds of steps leave out."""
    yield HEAVY_UPDATE, figures.longer(STEP, NO_UPDATE), 'without the update'
    yield SLOW_INPUT, figures.longer(STEP, SAME_BATCH), 'with one batch again and again, so without input'
    exchange = np.subtract(figures.seconds[NO_UPDATE], figures.seconds[TOWERS_ALONE])
    # The way of the gradients to the CPU is part of the exchange, but would be needed without averaging too.
    back = [lap.back for lap in figures.laps[STEP]]
    yield base.moments.averaging, Timing.of(exchange - back), f'without the {base.moments.averaging}'


def _computed(base, figures, costs) -> Iterator[tuple[str, Timing, str]]:
    """Yields (cause, by how many seconds a step would be shorter, how) for what has to be computed."""
    for cause, cost in costs.items():
        yield cause, Timing.of([cost]), f'without {cause} (computed)'
    laps = figures.laps[STEP]
    if TRANSFERS in laps[0].parts and FEWER in figures.laps:
        # Towers begin to compute while variables are still on their way, and that time counts as transfers. One device
        # alone shows how long they compute.
        meanwhile = [max(alone.parts[TOWERS] - lap.parts[TOWERS], 0) for alone, lap in zip(figures.laps[FEWER], laps)]
        saved = np.subtract([lap.parts[TRANSFERS] for lap in laps], meanwhile)
        yield TRANSFERS, Timing.of(saved), 'if nothing had to travel (computed)'
    groups = base.plan.devices.groups
    if cell(ONE_DEVICE, 0) in figures.seconds:
        alone = np.array([figures.seconds[cell(ONE_DEVICE, g)] for g in range(len(groups))])
        slowest = int(np.argmax(np.median(alone, 1)))
        # Devices that share the cores of a CPU may be slow in the steps without being slow alone, so the smaller of the
        # two differences counts.
        most = alone[slowest] - np.median(np.delete(alone, slowest, 0), 0)
        saved = [lap.devices.max() - np.delete(lap.devices, slowest).max() for lap in laps]
        yield (SLOW_TOWER, Timing.of(np.minimum(saved, most)),
               f"if {'+'.join(groups[slowest])} were as fast as the others (computed)")
