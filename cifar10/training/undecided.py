"""The settings that a user may leave undecided: which values they have in a run, and what to say about them.

A resumed run keeps its values unless the user gives others. For a new one they follow from its preset and its devices.
A precision is undecided only as `auto`.
"""
from collections.abc import Mapping
from typing import Any

from cifar10.base.errors import UsageError
from cifar10.base.registry import AUTO, OPTIMIZERS, PRECISIONS, UPDATE_MODES
from cifar10.parallel import gpus
from cifar10.parallel.devices import Devices
from cifar10.settings.presets import PRESETS, default_rates
from cifar10.settings.training import RecipeSettings, TowerSettings, TrainSettings

_INTERVALS = ('save_steps', 'eval_steps', 'keep_every')


def decided(settings: TrainSettings, devices: Devices, before: Mapping[str, Any]) -> TrainSettings:
    """Returns the settings of a run with a value for each that the user left undecided.

    Args:
      settings: as the user gave them.
      devices: the devices of the towers.
      before: the settings that a run which goes on has stored; empty for a new one.
    """
    towers, recipe = settings.towers, settings.recipe
    batch_size = towers.batch_size or before.get('batch_size', PRESETS[recipe.preset]['batch_size'])
    return settings.replace(
        num_towers=_num_towers(towers, len(devices.groups), before), batch_size=batch_size,
        precision=_precision(towers.precision, devices.on_gpus, before), **rates_of(recipe, before),
        **_intervals(settings))


def _num_towers(towers, num_groups, before):
    """Returns the number of towers; by default one for each group of devices."""
    if not UPDATE_MODES.load(towers.variable_update).one_tower_per_device:
        return towers.num_towers or before.get('num_towers', num_groups)
    if towers.num_towers not in (None, num_groups):
        raise UsageError(f'--num_towers={towers.num_towers} is incompatible with '
                         f'--variable_update={towers.variable_update}, which has one tower on each device, '
                         f'{num_groups} in all; leave it out')
    return num_groups


def _precision(asked, on_gpus, before):
    """Returns the name of the precision to compute in; for `auto` that of the run, or the hardware's fastest."""
    if asked != AUTO:
        return asked
    return before.get('precision') or ('bf16' if hardware_has('bf16', on_gpus) else 'fp32')


def hardware_has(precision: str, on_gpus: bool) -> bool:
    """Returns whether the GPUs, or the CPU, have instructions for a precision."""
    found = PRECISIONS.load(precision)
    return gpus.least_capability() >= found.gpu_capability if on_gpus else not found.is_emulated()


def rates_of(recipe: RecipeSettings, before: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns the values of the settings of learning rates: as given, else as before, else the optimizer's default.

    Args:
      recipe: settings that may leave them undecided.
      before: as for `decided`.
    """
    defaults = {}
    if not OPTIMIZERS.is_own(recipe.optimizer):
        defaults = default_rates(recipe.preset, recipe.optimizer)._asdict()
    values = {}
    for name in ('learning_rate', 'auxiliary_learning_rate'):
        given = getattr(recipe, name)
        values[name] = before.get(name, defaults.get(name)) if given is None else given
    return values


def _intervals(settings):
    """Returns the intervals in steps, as the next multiples of `local_steps`.

    Between two averages the copies of the variables differ, so there is no model to save or to evaluate.
    """
    every = settings.towers.local_steps or 1
    return {name: -(-getattr(settings.reports, name) // every) * every for name in _INTERVALS}


def rounded(given: TrainSettings, settings: TrainSettings) -> list[str]:
    """Returns a line with the intervals that are longer than the user gave them, if any."""
    changes = [f'--{name} from {before} to {now}' for name in _INTERVALS
               if (before := getattr(given.reports, name)) != (now := getattr(settings.reports, name))]
    every = settings.towers.local_steps
    return [f"rounded    {', '.join(changes)}: the next multiple of --local_steps={every}"] if changes else []


def emulated(towers: TowerSettings, devices: Devices) -> list[str]:
    """Returns a warning if the hardware has no instructions for the precision of the run."""
    if devices.on_gpus or not PRECISIONS.load(towers.precision).is_emulated():
        return []
    return [f'warning: this CPU has no {towers.precision} instructions, so --precision={towers.precision} is emulated '
            'and slow']


def waiting(towers: TowerSettings, devices: Devices) -> list[str]:
    """Returns lines about devices that have no tower, or whose towers are too few to keep all of them busy."""
    lines = []
    count, per_tower = len(devices.groups), towers.gpus_per_tower
    if towers.num_towers < count:
        kind = 'devices' if per_tower == 1 else f'groups of {per_tower} devices'
        lines.append(f'idle       {count - towers.num_towers} of {count} {kind}; --num_towers={count} would use them')
    if max(towers.num_towers // count, 1) < per_tower:  # towers of a group of devices
        why, remedy = 'too few towers fill the gaps', f'; --num_towers={per_tower * count} or more would'
        if UPDATE_MODES.load(towers.variable_update).one_tower_per_device:
            why, remedy = f'{towers.variable_update} has only one tower on them', ''
        lines.append(f'gaps       the {per_tower} devices of a tower wait for each other, because {why}{remedy}')
    return lines
