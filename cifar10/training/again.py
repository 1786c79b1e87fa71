"""To take the steps of an earlier start again: devices of this machine, and the same images."""
from collections.abc import Sequence

from cifar10.base.errors import UsageError
from cifar10.base.registry import UPDATE_MODES
from cifar10.data import records
from cifar10.parallel import determinism, gpus
from cifar10.parallel.devices import Devices, choose
from cifar10.run.record import RunRecord
from cifar10.settings.training import DataSettings


def devices_of(start: RunRecord, tower_device: str) -> Devices:
    """Returns the devices of this machine on which the towers of a start compute again.

    Args:
      start: the record of the start.
      tower_device: 'gpu', 'cpu', or 'auto': of the kind that the start had, where this machine has them.

    Raises:
      UsageError: this machine has too few GPUs.
    """
    towers = start.settings.towers
    mode = UPDATE_MODES.load(towers.variable_update)
    groups = start.groups if mode.uses_strategy else 1
    groups_here = gpus.count() // towers.gpus_per_tower
    kind = tower_device
    if kind == 'auto':
        enough = groups_here >= (groups if mode.one_tower_per_device else 1)
        kind = 'gpu' if start.on_gpus and enough else 'cpu'
    if kind == 'gpu' and not mode.one_tower_per_device:
        groups = min(groups, max(groups_here, 1))
    count = groups * towers.gpus_per_tower
    if kind == 'gpu' and 0 < gpus.count() < count:
        raise UsageError(f'--tower_device=gpu: the steps were taken on {count} GPUs, and this machine has '
                         f'{gpus.count()}; use --tower_device=cpu')
    devices = choose(count, kind, towers.gpus_per_tower)
    return devices.with_towers(towers.num_towers)


def claim(devices: Sequence[Devices], is_deterministic: bool) -> None:
    """Readies this process for devices, and for operations that are deterministic if any steps were."""
    gpus.claim(max(each.num_gpus for each in devices))
    if is_deterministic:
        determinism.turn_on()


def images(settings: DataSettings) -> records.Records:
    """Returns the training images that settings name."""
    return records.of(settings)
