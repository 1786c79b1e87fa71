"""The settings of a replay."""
import dataclasses

from cifar10.base.directories import TRAIN_DIR
from cifar10.base.errors import UsageError
from cifar10.base.registry import DATASETS, LOSSES, NETWORKS, OPTIMIZERS
from cifar10.settings.definition import checked, fields, flag_of, setting
from cifar10.settings.training import TOWER_DEVICES, step_range


@dataclasses.dataclass(frozen=True)
class ReplaySettings:
    """What is replayed, and what is shown of it."""
    TITLE = 'Replay'
    train_dir: str = setting(TRAIN_DIR, 'train_dir of the run', is_path=True)
    step: int = setting(None, 'step to look into', minimum=1)
    steps: str = setting(None, 'FROM:TO, steps to show in a table', checks=[step_range])
    against: str = setting(
        None, 'train_dir of another run: shows the first checkpoint and the first loss that differ in the records of '
        'both', is_path=True)
    from_: str = setting(
        None, 'prefix of the checkpoint to start from (default: the newest one before the step, or the initial values)',
        is_path=True)
    tower_device: str = setting(
        'auto', 'device of the towers; auto: the kind that the run had, if this machine has it', choices=TOWER_DEVICES)
    data_dir: str = setting(
        None, "directory of the data set (default: the run's)", is_path=True)
    dataset: str = setting(
        None, "new location of the run's own images, if they were moved (default: the run's)", choices=DATASETS)
    network: str = setting(
        None, "new location of the run's own network, if its file was moved (default: the run's)", choices=NETWORKS)
    optimizer: str = setting(
        None, "new location of the run's own optimizer, if its file was moved (default: the run's)",
        choices=OPTIMIZERS)
    loss: str = setting(
        None, "new location of the run's own loss, if its file was moved (default: the run's)", choices=LOSSES)


def replay_settings(**given: object) -> ReplaySettings:
    """Returns the settings of a replay; raises a UsageError if a value is not valid, or settings conflict."""
    settings = ReplaySettings(**checked([ReplaySettings], given))
    if [settings.step, settings.steps, settings.against].count(None) != 2:
        raise UsageError('give exactly one of --step=N (a step to look into), --steps=FROM:TO (a table of steps) and '
                         '--against=DIR (a run to compare with)')
    for field in fields(ReplaySettings) if settings.against is not None else ():
        if field.name not in ('train_dir', 'against') and getattr(settings, field.name) != field.default:
            raise UsageError(f'{flag_of(field)} contradicts --against, which replays no steps; leave one of them out')
    return settings
