"""The settings that a user may leave undecided: which values they have in a run, and what to say about them.

A resumed run keeps its values unless the user gives others. For a new one they follow from its preset and its devices.
"""
from collections.abc import Mapping
from typing import Any

from cifar10.base.errors import UsageError
from cifar10.base.registry import AUTO, OPTIMIZERS, PRECISIONS, UPDATE_MODES
from cifar10.parallel import gpus
from cifar10.parallel.devices import Devices
from cifar10.settings.presets import PRESETS, default_rates
from cifar10.settings.training import TowerSettings, TrainSettings

_INTERVALS = ('save_steps', 'eval_steps')


def decided(settings: TrainSettings, devices: Devices, before: Mapping[str, Any]) -> TrainSettings:
    """Returns the settings of a run with a value for each that the user left undecided.

    The intervals in steps become multiples of `local_steps`: between two averages the copies of the variables differ,
    so there is no model to save or to evaluate.

    Args:
      settings: as the user gave them.
      devices: the devices of the towers.
      before: the settings that a run which goes on has stored; empty for a new one.
    """
    towers, recipe, count = settings.towers, settings.recipe, len(devices.groups)
    if UPDATE_MODES.load(towers.variable_update).one_tower_per_device:
        if towers.num_towers not in (None, count):
            raise UsageError(f'--num_towers={towers.num_towers} is incompatible with '
                             f'--variable_update={towers.variable_update}, which has one tower on each device, '
                             f'{count} in all; leave it out')
        before = {**before, 'num_towers': count}
    defaults = dict(
        num_towers=count, batch_size=PRESETS[recipe.preset]['batch_size'],
        precision='bf16' if hardware_has('bf16', devices.on_gpus) else 'fp32',
        learning_rate=None, auxiliary_learning_rate=None)
    if not OPTIMIZERS.is_own(recipe.optimizer):
        rates = default_rates(recipe.preset, recipe.optimizer)
        defaults.update(learning_rate=rates.learning_rate, auxiliary_learning_rate=rates.auxiliary_learning_rate)
    given = settings.flat()
    values = {name: before.get(name, default) if given[name] in (None, AUTO) else given[name]
              for name, default in defaults.items()}
    every = towers.local_steps or 1
    return settings.replace(**values, **{name: -(-given[name] // every) * every for name in _INTERVALS})


def hardware_has(precision: str, on_gpus: bool) -> bool:
    """Returns whether the GPUs, or the CPU, have instructions for a precision."""
    found = PRECISIONS.load(precision)
    return gpus.least_capability() >= found.gpu_capability if on_gpus else not found.is_emulated()


def rounded_intervals(given: TrainSettings, settings: TrainSettings) -> list[str]:
    """Returns a line with the intervals that are longer than the user gave them, if any."""
    changes = [f'--{name} from {before} to {now}' for name in _INTERVALS
               if (before := getattr(given.reports, name)) != (now := getattr(settings.reports, name))]
    every = settings.towers.local_steps
    return [f"rounded    {', '.join(changes)}: the next multiple of --local_steps={every}"] if changes else []


def emulation_warning(towers: TowerSettings, devices: Devices) -> list[str]:
    """Returns a warning if the hardware has no instructions for the precision of the run."""
    if devices.on_gpus or not PRECISIONS.load(towers.precision).is_emulated():
        return []
    return [f'warning: this CPU has no {towers.precision} instructions, so --precision={towers.precision} is emulated '
            'and slow']


def unused_devices(towers: TowerSettings, devices: Devices) -> list[str]:
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
