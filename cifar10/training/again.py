"""To take the steps of earlier starts again: on devices of this machine, with the same images."""
from collections.abc import Sequence

from cifar10.base.errors import UsageError
from cifar10.base.registry import UPDATE_MODES
from cifar10.data import records
from cifar10.parallel import gpus, session_config
from cifar10.parallel.devices import Devices, choose
from cifar10.run.record import RunRecord
from cifar10.settings.training import DataSettings


def prepared(starts: Sequence[RunRecord], tower_device: str,
             data: DataSettings) -> tuple[list[Devices], records.Records]:
    """Readies this process to take steps of some starts again.

    Args:
      starts: the records of the starts.
      tower_device: 'gpu', 'cpu', or 'auto': of the kind that a start had, where this machine has them.
      data: what names the training images.

    Returns:
      (for each start the devices on which its towers compute again, the training images).

    Raises:
      UsageError: this machine has too few GPUs.
    """
    devices = [_devices_of(start, tower_device) for start in starts]
    gpus.claim(max(each.num_gpus for each in devices))
    if any(start.settings.towers.deterministic for start in starts):
        session_config.turn_on_determinism()
    return devices, records.prepared(data)


def _devices_of(start, tower_device):
    """Returns the devices of this machine on which the towers of a start compute again."""
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
        raise UsageError(f'--tower_device=gpu: the steps were taken on {count} GPUs, and {gpus.available()}; use '
                         '--tower_device=cpu')
    return choose(count, kind, towers.gpus_per_tower)
