"""Causes of a long step: a class for each, with the trials that show how long a step would take without it.

A cause is tried by a short training with another setting, by steps that leave something out, or, where neither is
possible, computed from the parts of the step.
"""
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from cifar10.base.registry import PRECISIONS, UPDATE_MODES
from cifar10.tools.explain import moments
from cifar10.tools.explain.measure import Figures
from cifar10.tools.explain.report import Timing, Would
from cifar10.tools.explain.variant import NO_UPDATE, ONE_DEVICE, SAME_BATCH, STEP, SUMMARY, TOWERS_ALONE, Variant
from cifar10.training.plan import Plan
from cifar10.training.undecided import hardware_has

FEWER = 'one device'  # the training with the first device only
NOTED = 0.025  # the share of a step below which a saving is ignored
_LOOKED_AT = 5  # steps, before anything is measured
_SLOWER = 1.1  # times the median of the others: a device that takes longer than this is also measured alone
_CHEAPEST = 'sgd'  # the optimizer with the fewest computations


class Cause:
    """A cause of long steps.

    In its methods, `base` is the training as it is, `plan` the plan of that training or of another one.

    Attributes:
      name: of the cause.
      advice: what is wrong and, after a semicolon, what to do; {how} stands for `Would.how`.
    """
    name = ''
    advice = ''

    def applies(self, plan: Plan) -> bool:
        """Returns whether steps of a training can be long because of it."""
        return True

    def tries(self, plan: Plan) -> dict[str, dict[str, Any]]:
        """Returns the trainings without it, by the flag that a person would give: the settings that differ."""
        return {}

    def kinds(self, base: Variant) -> list[tuple]:
        """Returns the kinds of steps that tell of it, as the arguments of `Variant.take` that choose one."""
        return []

    def pause(self, base: Variant) -> float:
        """Takes the pause between two steps that it makes; returns the seconds that it adds to a step on average."""
        return 0.0

    def without(self, found: 'Found') -> tuple[Timing, str] | None:
        """Returns (by how many seconds a step would be shorter, how it is removed); None where that is not known.

        By default, they are the seconds that it adds to a step on average.
        """
        return (Timing.of([found.costs[self]]), f'without {self.name} (computed)') if self in found.costs else None


class Mode(Cause):
    """Another update mode would be faster."""
    name = 'update mode'
    advice = 'another update mode exchanges the same gradients in less time; train {how}'

    def tries(self, plan):
        modes = {name: UPDATE_MODES.load(name) for name in UPDATE_MODES}
        return {f'--variable_update={name}': dict(variable_update=name) for name, mode in modes.items()
                if len(plan.devices.groups) > 1 and mode.synchronous and not mode.drifts and mode.spans_machines
                and name != plan.settings.towers.variable_update}


class Precision(Cause):
    """The hardware computes faster in another precision."""
    name = 'precision'
    advice = 'this hardware computes faster in another precision; train {how}'

    def tries(self, plan):
        return {f'--precision={name}': dict(precision=name) for name in PRECISIONS
                if name != plan.settings.towers.precision and hardware_has(name, plan.devices.on_gpus)
                and not PRECISIONS.load(name).scales_loss}


class SmallBatch(Cause):
    """Part of a step takes the same time whatever the batch size."""
    name = 'small batch'
    advice = 'part of a step takes the same time whatever the batch size; give each tower more images: train {how}'

    def tries(self, plan):
        larger = 2 * plan.settings.towers.batch_size
        return {f'--batch_size={larger}': dict(batch_size=larger)}


class HeavyUpdate(Cause):
    """The optimizer takes long to apply the gradients."""
    name = 'heavy update'
    advice = 'the optimizer takes long to apply the gradients; use a cheaper one, or more images in each batch'

    def tries(self, plan):
        if plan.settings.recipe.optimizer == _CHEAPEST:
            return {}
        return {f'--optimizer={_CHEAPEST} (another recipe)': dict(
            optimizer=_CHEAPEST, auxiliary_learning_rate=None, weight_decay=None)}

    def kinds(self, base):
        return [(NO_UPDATE,)] if base.moments.after_averaging else []

    def without(self, found):
        if NO_UPDATE not in found.figures.seconds or any(other.cause is self for other in found.others.values()):
            return None
        return found.figures.longer(STEP, NO_UPDATE), 'without the update'


class SlowInput(Cause):
    """The towers wait for their batches."""
    name = 'slow input'
    advice = ('the towers wait for their batches, because the CPU cannot make them fast enough; use '
              'a cheaper augmentation, a machine with more cores, or more machines')

    def kinds(self, base):
        return [(SAME_BATCH,)]

    def without(self, found):
        return found.figures.longer(STEP, SAME_BATCH), 'with one batch again and again, so without input'


class Averaging(Cause):
    """The towers wait while their gradients are averaged."""
    name = moments.AVERAGING
    advice = ('the towers wait while their gradients are averaged; use --variable_update=replicated, '
              'or fewer towers with more images each')

    def kinds(self, base):
        return [(NO_UPDATE,), (TOWERS_ALONE,)] if base.moments.after_towers else []

    def without(self, found):
        if found.base.moments.averaging != self.name or TOWERS_ALONE not in found.figures.seconds:
            return None
        exchange = found.figures.longer(NO_UPDATE, TOWERS_ALONE) + -found.figures.lap(STEP).back
        return exchange, f'without the {self.name}'


class AllReduce(Averaging):
    """The devices wait while their gradients are all-reduced."""
    name = moments.ALL_REDUCE
    advice = ('the devices wait while their gradients are all-reduced; use a faster link between '
              'them, or more images in each batch')


class Transfers(Cause):
    """Variables and gradients move between devices for long."""
    name = 'transfers'
    advice = ('much of a step is spent moving variables and gradients between devices; use '
              '--variable_update=replicated, a faster link, or more images in each batch')

    def without(self, found):
        parts = found.figures.lap(STEP).parts
        if moments.TRANSFERS not in parts or FEWER not in found.figures.laps:
            return None
        # Towers begin to compute while variables are still on their way, and that time counts as transfers. One device
        # alone shows how long they compute.
        alone = found.figures.lap(FEWER).parts
        meanwhile = max(alone[moments.TOWERS] - parts[moments.TOWERS], 0)
        return Timing.of([parts[moments.TRANSFERS] - meanwhile]), 'if nothing had to travel (computed)'


class SlowTower(Cause):
    """Every step waits for one device."""
    name = 'slow tower'
    advice = 'every step waits for one device; find out what else runs on it, or leave it out'

    def kinds(self, base):
        computes = np.median([lap.devices for lap in base.laps(_LOOKED_AT)], 0)
        if len(computes) < 2 or computes.max() <= _SLOWER * np.median(np.delete(computes, computes.argmax())):
            return []
        return [(ONE_DEVICE, g) for g in range(len(computes))]

    def without(self, found):
        groups = found.base.plan.devices.groups
        if cell(ONE_DEVICE, 0) not in found.figures.seconds:
            return None
        alone = np.array([found.figures.seconds[cell(ONE_DEVICE, g)] for g in range(len(groups))])
        slowest = int(np.argmax(np.median(alone, 1)))
        # Devices that share the cores of a CPU may be slow in the steps without being slow alone, so the smaller of the
        # two differences counts.
        most = alone[slowest] - np.median(np.delete(alone, slowest, 0), 0)
        saved = [lap.devices.max() - np.delete(lap.devices, slowest).max() for lap in found.figures.laps[STEP]]
        how = f"if {'+'.join(groups[slowest])} were as fast as the others (computed)"
        return Timing.of(np.minimum(np.mean(saved), most).tolist()), how


class Summaries(Cause):
    """Summaries are written often."""
    name = 'summaries'
    advice = 'summaries for TensorBoard take much of the time; use a larger --summary_steps'

    def applies(self, plan):
        return bool(plan.settings.reports.summary_steps)

    def kinds(self, base):
        return [(SUMMARY,)]


class Checkpoints(Cause):
    """Checkpoints are saved often."""
    name = 'checkpoints'
    advice = 'saving takes much of the time; use a larger --save_steps'

    def pause(self, base):
        return _second(base, base.save) / base.plan.settings.reports.save_steps


class Evaluation(Cause):
    """The run is evaluated often."""
    name = 'evaluation'
    advice = 'evaluation takes much of the time; use a larger --eval_steps'

    def pause(self, base):
        every = base.plan.settings.reports.eval_steps
        return _second(base, base.evaluate) / every if every else 0.0


class Copies(Cause):
    """The towers' copies of the variables are averaged often."""
    name = 'averages of the copies'
    advice = 'averaging the copies takes much of the time; use a larger --local_steps'

    def applies(self, plan):
        return plan.mode.drifts and plan.devices.num_towers > 1

    def pause(self, base):
        return _second(base, base.average) / base.plan.settings.towers.local_steps


SUMMARIES = Summaries()
CAUSES = (Mode(), Precision(), SmallBatch(), HeavyUpdate(), SlowInput(), Averaging(), AllReduce(), Transfers(),
          SlowTower(), SUMMARIES, Checkpoints(), Evaluation(), Copies())


def cell(*kind: Any) -> str:
    """Returns the name of a kind of steps of the training as it is, in `Figures`."""
    return ' '.join(map(str, kind))


def pauses(base: Variant) -> dict[Cause, float]:
    """Returns the seconds that pauses add to a step on average; call it before all measurements.

    Steps that train on one batch again and again may diverge, and what diverged cannot be saved.
    """
    return {cause: cost for cause in CAUSES if cause.applies(base.plan) and (cost := cause.pause(base))}


def _second(base, pause):
    """Returns the seconds that a pause between two steps takes the second time: only the first optimises a graph."""
    pause()
    base.take(1)
    begin = time.perf_counter()
    pause()
    return time.perf_counter() - begin


class Found:
    """What was found out.

    Args:
      base: the training as it is.
      others: the trainings that it is compared with, by their names.
      figures: the `Figures` of all of them.
      pauses: as `pauses` returns them.

    Attributes:
      base, others, figures: as given.
      costs: {cause: the seconds that are added to a step, on average, by what happens only in or after some steps}.
      step: the `Timing` of a step with these costs.
    """

    def __init__(self, base: Variant, others: Mapping[str, Variant], figures: Figures, pauses: Mapping[Cause, float]):
        self.base, self.others, self.figures, self.costs = base, others, figures, dict(pauses)
        if every := base.plan.settings.reports.summary_steps:
            self.costs[SUMMARIES] = max(figures.longer(SUMMARY, STEP).median, 0) / every
        self.step = self.timing(STEP, base.plan)

    def timing(self, name: str, plan: Plan) -> Timing:
        """Returns the Timing of a step in a cell of a plan, with what the costs of the training as it is add to it."""
        return self.figures.timing(name) + cost_of(self.costs, plan)

    def woulds(self) -> list[Would]:
        """Returns what a step would take without each cause that was tried, or that makes it noticeably longer."""
        result = []
        for name, other in self.others.items():
            if other.cause:
                scale = other.plan.examples_per_step / self.base.plan.examples_per_step
                result.append(Would(other.cause, self.timing(name, other.plan), scale, f'with {name}'))
        for cause in CAUSES:
            if without := cause.without(self):
                saved, how = without
                timing = self.step.without(saved)
                if timing.low < (1 - NOTED) * self.step.median:
                    result.append(Would(cause, timing, 1, how))
        return result


def cost_of(costs: Mapping[Cause, float], plan: Plan) -> float:
    """Returns the seconds that are added to a step of a plan, of the costs of the training as it is."""
    return sum(cost for cause, cost in costs.items() if cause.applies(plan))
