"""What happens before the training graph is built: devices are claimed, the state of train_dir is checked."""
import dataclasses
import os
from typing import NamedTuple

import tensorflow as tf2

from cifar10.config import TrainConfig
from cifar10.data.records import TEST, Records, prepare
from cifar10.directories import check_dir
from cifar10.errors import UsageError, difference
from cifar10.parallel import devices, gpus
from cifar10.parallel.update import UpdateMode
from cifar10.presets import PRESETS
from cifar10.recipe import Recipe
from cifar10.registry import AUTO, NETWORKS, PRECISIONS, UPDATE_MODES
from cifar10.run import checkpoint
from cifar10.run.train_dir import ANOTHER_RUN, TrainDir
from cifar10.trained.validation import Validation

# Settings that may change when a run is resumed, and are said to.
_TOLD = ('learning_rate', 'auxiliary_learning_rate', 'label_smoothing', 'precision')
_FEW_STEPS = 50  # fewer teach little


def local_devices(config: TrainConfig) -> devices.Devices:
    """Returns the devices of this machine that the towers get.

    Raises:
      UsageError: this machine does not have them, or the network is wrong; see `check_network`.
    """
    check_network(config)
    return devices.choose(config.num_gpus, config.tower_device, config.gpus_per_tower)


def check_network(config: TrainConfig) -> None:
    """Raises a UsageError if there is no such network, or if it cannot be divided over the devices of a tower."""
    parts = NETWORKS.load(config.network).parts
    if config.gpus_per_tower > parts:
        raise UsageError(f'--gpus_per_tower={config.gpus_per_tower}, but the {config.network} network has {parts} '
                         f'parts; use at most --gpus_per_tower={parts}')


def claim_devices(config: TrainConfig, towers: devices.Devices | None = None) -> devices.Devices:
    """Claims the towers' devices for this process, unless they are given.

    Raises:
      UsageError: the config asks for something that they cannot do.
    """
    if towers is None:
        towers = local_devices(config)
        gpus.claim(towers.num_gpus)
    if config.xla and not towers.on_gpus:
        raise UsageError('--xla compiles for GPUs, and the towers are on CPU devices; leave it out')
    if config.deterministic:
        tf2.config.experimental.enable_op_determinism()
    return towers


def training_data(config: TrainConfig, directory: TrainDir) -> Records:
    """Returns the training data, downloaded or made if need be, once it is known that the run can be in a directory.

    Raises:
      UsageError: it cannot, or the data cannot be had.
    """
    check_directory(config, directory)
    return prepare(config.dataset, config.data_dir, test_fraction=config.test_fraction)


def check_directory(config: TrainConfig, directory: TrainDir) -> bool:
    """Returns whether the run would begin by deleting an earlier one; changes nothing.

    Raises:
      UsageError: the run cannot be in the directory.
    """
    check_dir(directory.path, '--train_dir')
    directory.refuse_another_process()
    return _replaces(config, directory)


def _replaces(config, directory):
    """Returns whether a run replaces one in the directory; raises a UsageError if that is another and must stay."""
    if config.restart:
        return directory.check_restart(checkpoint.is_ours)
    directory.refuse_another_run(dataclasses.asdict(config))
    return False


class Plan(NamedTuple):
    """All that is decided before the graph is built.

    Attributes:
      config: with this run's number of towers, batch size and precision.
      recipe: what is trained and how.
      data: the training images.
      towers: the devices, with the towers on them.
      mode: the update mode.
      start: the checkpoint that the run starts from, or None.
      step, last_step: its step, and the one that the run ends after.
      validation: what evaluates it between two steps, or None.
    """
    config: TrainConfig
    recipe: Recipe
    data: Records
    towers: devices.Devices
    mode: UpdateMode
    start: str | None
    step: int
    last_step: int
    validation: Validation | None = None

    @property
    def examples_per_step(self) -> int:
        """Examples of all towers in a step."""
        return self.mode.batches * self.config.batch_size

    @property
    def settings(self) -> dict:
        """What the run stores of itself; its data is to be found from any working directory."""
        return dict(dataclasses.asdict(self.config), data_dir=os.path.abspath(self.config.data_dir),
                    classes=self.data.classes, examples=self.data.count)

    @property
    def finished(self) -> bool:
        """Whether no step is left."""
        return self.step >= self.last_step


def plan(config: TrainConfig, directory: TrainDir, data: Records, local: devices.Devices) -> Plan:
    """Returns the Plan of the run in a directory, having told it and made what it needs before a graph is built.

    Args:
      config: as the user gave it.
      directory: of the run.
      data: the training data.
      local: the devices.

    Raises:
      UsageError: the directory holds another run, or the settings do not fit together.
    """
    found = decide(config, directory, data, local)
    refuse_other_images(found, directory)
    describe(found)
    if not found.start:
        found.recipe.learn(data)
    return found._replace(validation=_validation(found))


def decide(config: TrainConfig, directory: TrainDir, data: Records, local: devices.Devices) -> Plan:
    """Returns the Plan of the run in a directory and changes nothing; as `plan`."""
    start = _find_start(config, directory)
    config, towers = _resolve(config, directory, start, local)
    recipe = Recipe(dataclasses.asdict(config), len(data.classes), data.count)
    recipe.check(config.batch_size, PRECISIONS.load(config.precision).dtype)
    mode = UPDATE_MODES.load(config.variable_update)(towers)
    step, seen = checkpoint.saved_progress(start) if start else (0, 0)
    last_step = config.max_steps
    if recipe.total_examples is not None:
        last_step = step + max(-(-(recipe.total_examples - seen) // (mode.batches * config.batch_size)), 0)
    return Plan(config, recipe, data, towers, mode, start, step, last_step)


def refuse_other_images(plan: Plan, directory: TrainDir) -> None:
    """Raises a UsageError if a Plan goes on with a run on other images."""
    stored = (plan.start and directory.settings()) or {}
    classes, examples = stored.get('classes', plan.data.classes), stored.get('examples', plan.data.count)
    if tuple(classes) != plan.data.classes:
        raise UsageError(f'--train_dir={directory.path} holds a run on other classes (now '
                         f'{difference(classes, plan.data.classes)}); {ANOTHER_RUN}')
    if examples != plan.data.count:
        raise UsageError(f'--train_dir={directory.path} holds a run on {examples} images (now {plan.data.count}); '
                         f'{ANOTHER_RUN}')


def _validation(plan):
    """Returns what evaluates a run between two steps, on the devices of this process; None if nothing does."""
    config = plan.config
    if plan.finished or not config.eval_steps:
        return None
    data = prepare(config.dataset, config.data_dir, TEST, config.test_fraction)
    return Validation(plan.recipe, data, local_devices(config), config.moving_averages)


def _find_start(config: TrainConfig, directory: TrainDir) -> str | None:
    """Returns the prefix of the checkpoint that the run resumes from, verified; None for a new run.

    Raises:
      UsageError: the directory holds another run, or one that cannot be read.
    """
    # Looked at before the images were fetched too, but only now does no other process change it.
    if _replaces(config, directory):
        return None  # what was there is deleted when the run starts
    return checkpoint.newest_of_run(directory)


def _resolve(config: TrainConfig, directory: TrainDir, start: str | None,
             local: devices.Devices) -> tuple[TrainConfig, devices.Devices]:
    """Returns the config with this run's number of towers, batch size and precision, and the devices with its towers.

    A run keeps them unless the config names others, and then it says so.

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
    settings = (start and directory.settings()) or {}
    stored = checkpoint.stored_division(start, settings.get('batch_size')) if start else {}
    if start:
        earlier = {**PRESETS['classic'], **settings}  # versions without presets stored none
        stored.update({name: earlier[name] for name in _TOLD})
    given = count if one_each else config.num_towers
    if start and checkpoint.is_ours(start) and not (given or 'num_towers' in stored):
        print(f'warning: {start} does not tell how many towers wrote it; this run has one on each device')
    found = dict(num_towers=given or stored.get('num_towers', count),
                 batch_size=config.batch_size or stored.get('batch_size', PRESETS[config.preset]['batch_size']),
                 **{name: getattr(config, name) for name in _TOLD})
    found['precision'] = _precision(config.precision, settings.get('precision'), local.on_gpus)
    changes = [f'{name} from {stored[name]} to {value}' for name, value in found.items()
               if stored.get(name, value) != value]
    if changes:
        print(f"changed    {', '.join(changes)}, from here on")
    if found['num_towers'] < count:
        print(f"idle       {count - found['num_towers']} of {count} devices; --num_towers={count} would use them")
    return dataclasses.replace(config, **found), local.with_towers(found['num_towers'])


def _precision(wanted, stored, on_gpus):
    """Returns the name of the precision to compute in, having warned if it is slow here."""
    if wanted == AUTO:
        bf16 = PRECISIONS.load('bf16')
        has_it = gpus.least_capability() >= bf16.gpu_capability if on_gpus else not bf16.is_emulated()
        wanted = stored or ('bf16' if has_it else 'fp32')
    if not on_gpus and PRECISIONS.load(wanted).is_emulated():
        print(f'warning: this CPU has no {wanted} instructions, so --precision={wanted} is emulated and slow')
    return wanted


def describe(plan: Plan) -> None:
    """Prints what a person wants to know before the first step."""
    config, examples = plan.config, plan.examples_per_step
    progress = f'resumed at step {plan.step} of {plan.last_step}' if plan.step else f'new, to step {plan.last_step}'
    auxiliary = f' (auxiliary {config.auxiliary_learning_rate:g})' if config.auxiliary_learning_rate else ''
    print(f'recipe     {plan.recipe}')
    print(f'towers     {plan.towers.num_towers} of {config.batch_size} {plan.towers}')
    print(f'update     {config.variable_update}')
    print(f'data       {plan.data}')
    print(f'batch      {examples} a step; {plan.data.count / examples:.1f} steps an epoch')
    print(f'rate       {config.learning_rate:g}{auxiliary}, {plan.recipe.schedule.describe(examples)}')
    if config.epochs and not plan.step and 0 < plan.last_step < _FEW_STEPS:
        count = f"{plan.last_step} step{'s' * (plan.last_step > 1)}"
        print(f'warning: the run has only {count}; use a smaller --batch_size or more --epochs')
    print(f"run        {config.train_dir}, {f'at step {plan.step}' if plan.finished else progress}")
    print(f'watch      tensorboard --logdir {os.path.abspath(config.train_dir)}')
    if plan.finished:
        length = f'--epochs={config.epochs:g}' if config.epochs else f'--max_steps={config.max_steps}'
        remedy = '' if config.schedule == 'linear' else '; give more to continue'
        print(f'done       at step {plan.step} the run has its {length} already{remedy}')
