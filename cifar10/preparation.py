"""What happens before the training graph is built: devices are claimed, the state of train_dir is checked."""
import dataclasses
import os

import tensorflow as tf2

from cifar10.config import BATCH_SIZE, TrainConfig
from cifar10.data.records import Records
from cifar10.errors import UsageError
from cifar10.optim import schedule
from cifar10.parallel import devices
from cifar10.registry import NETWORKS, PRECISIONS, UPDATE_MODES
from cifar10.run import checkpoint
from cifar10.run.train_dir import TrainDir


def local_devices(config: TrainConfig) -> devices.Devices:
    """Returns the devices of this machine that the towers get.

    Raises:
      UsageError: this machine does not have them, or the network cannot be divided over so many.
    """
    parts = NETWORKS.load(config.network).parts
    if config.gpus_per_tower > parts:
        raise UsageError(f'--gpus_per_tower={config.gpus_per_tower}, but the {config.network} network has {parts} '
                         f'parts; use at most --gpus_per_tower={parts}')
    return devices.choose(config.num_gpus, config.tower_device, config.gpus_per_tower)


def claim_devices(config: TrainConfig, towers: devices.Devices | None = None) -> devices.Devices:
    """Claims the towers' devices for this process, unless they are given.

    Raises:
      UsageError: the config asks for something that they cannot do.
    """
    if towers is None:
        towers = local_devices(config)
        devices.claim(towers)
    if config.xla and not towers.on_gpus:
        raise UsageError('--xla compiles for GPUs, and the towers are on CPU devices; leave it out')
    if not towers.on_gpus and PRECISIONS.load(config.precision).is_emulated():
        print(f'warning: this CPU has no {config.precision} instructions, so --precision={config.precision} is '
              'emulated and slow')
    if config.deterministic:
        tf2.config.experimental.enable_op_determinism()
    return towers


def find_start(config: TrainConfig, directory: TrainDir) -> str | None:
    """Returns the prefix of the checkpoint that the run resumes from, verified; None for a new run.

    Raises:
      UsageError: the directory holds another run, or one that cannot be read.
    """
    if config.restart:
        directory.restart(checkpoint.is_ours)
    else:
        directory.refuse_another_run(dataclasses.asdict(config))
    return checkpoint.newest_of_run(directory)


def resolve(config: TrainConfig, directory: TrainDir, start: str | None,
            local: devices.Devices) -> tuple[TrainConfig, devices.Devices]:
    """Returns the config with the number of towers and the batch size of this run, and the devices with its towers.

    A run keeps both unless the config names others, and then it says so.

    Args:
      config: as the user gave it.
      directory: of the run.
      start: the checkpoint that it starts from, or None.
      local: the devices.

    Raises:
      UsageError: the update mode cannot have so many towers.
    """
    count = len(local.groups)
    one_each = UPDATE_MODES.load(config.variable_update).one_tower_per_device
    if one_each and config.num_towers not in (None, count):
        raise UsageError(f'--num_towers={config.num_towers} is incompatible with '
                         f'--variable_update={config.variable_update}, which has one tower on each of the {count} '
                         'devices; leave it out')
    stored = checkpoint.stored_division(start, (directory.settings() or {}).get('batch_size')) if start else {}
    given = count if one_each else config.num_towers
    if start and checkpoint.is_ours(start) and not (given or 'num_towers' in stored):
        print(f'warning: {start} does not tell how many towers wrote it; this run has one on each device')
    found = dict(num_towers=given or stored.get('num_towers', count),
                 batch_size=config.batch_size or stored.get('batch_size', BATCH_SIZE))
    changes = [f'{name} from {stored[name]} to {value}' for name, value in found.items()
               if stored.get(name, value) != value]
    if changes:
        print(f"changed    {', '.join(changes)}, from here on")
    if found['num_towers'] < count:
        print(f"idle       {count - found['num_towers']} of {count} devices; --num_towers={count} would use them")
    return dataclasses.replace(config, **found), local.with_towers(found['num_towers'])


def describe(config: TrainConfig, towers: devices.Devices, data: Records, examples_per_step: int, step: int) -> None:
    """Prints what a person wants to know before the first step; `step` is the one that the run resumes from, or 0."""
    period = schedule.decay_steps(data.count, examples_per_step)
    resumed = f'resumed at step {step} of' if step else 'new, to step'
    print(f'towers     {towers.num_towers} of {config.batch_size} {towers}')
    print(f'update     {config.variable_update}')
    print(f'data       {data}')
    print(f'batch      {examples_per_step} a step; {data.count / examples_per_step:.1f} steps an epoch')
    print(f'rate       {schedule.INITIAL_RATE:g}, x{schedule.DECAY_FACTOR:g} every {schedule.DECAY_EPOCHS} epochs = '
          f'{period} steps of this run')
    print(f'run        {config.train_dir}, {resumed} {config.max_steps}')
    print(f'watch      tensorboard --logdir {os.path.abspath(config.train_dir)}')


def finished(config: TrainConfig, step: int) -> bool:
    """Returns whether a run at `step` has no step left, having said so."""
    if step >= config.max_steps:
        print(f'done       at step {step} the run has its --max_steps={config.max_steps} already; give more to '
              'continue')
    return step >= config.max_steps
