"""What happens before the training graph is built: devices are claimed, the state of train_dir is checked."""
import dataclasses
import os

import tensorflow as tf2

from cifar10.config import TrainConfig
from cifar10.data.records import Records
from cifar10.errors import UsageError
from cifar10.optim import schedule
from cifar10.parallel import devices
from cifar10.registry import NETWORKS, PRECISIONS
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
    """Claims the towers' devices for this process, unless they are given, and prints them.

    Raises:
      UsageError: the config asks for something that they cannot do.
    """
    if towers is None:
        towers = local_devices(config)
        devices.claim(towers)
    print(f'towers     {towers}')
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


def describe(config: TrainConfig, data: Records, examples_per_step: int, step: int) -> None:
    """Prints what a person wants to know before the first step; `step` is the one that the run resumes from, or 0."""
    period = schedule.decay_steps(data.count, examples_per_step)
    resumed = f'resumed at step {step} of' if step else 'new, to step'
    print(f'update     {config.variable_update}')
    print(f'data       {data}')
    print(f'batch      {config.batch_size} a tower, {examples_per_step} a step; '
          f'{data.count / examples_per_step:.1f} steps an epoch')
    print(f'rate       {schedule.INITIAL_RATE:g}, x{schedule.DECAY_FACTOR:g} every {schedule.DECAY_EPOCHS} epochs = '
          f'{period} steps of this run')
    print(f'run        {config.train_dir}, {resumed} {config.max_steps}')
    print(f'watch      tensorboard --logdir {os.path.abspath(config.train_dir)}')
