"""The plan of a run: all that is decided before its graph is built, and which settings identify a run.

Deciding is a list of stages. A stage looks at the machine and at train_dir, adds what it decides to a Start, and
returns the lines that a person should read; it prints nothing and writes nothing. Training stops at the first stage
that fails; `--check` continues with the stages that do not depend on it.
"""
import contextlib
import dataclasses
import math
import os
import re
from typing import Any, NamedTuple

from cifar10.base.errors import UsageError, listed
from cifar10.base.registry import NETWORKS, OPTIMIZERS, PRECISIONS, TO_THE_END, UPDATE_MODES
from cifar10.data import records
from cifar10.data.records import Records
from cifar10.model import NUM_CLASSES
from cifar10.model.recipe import Recipe
from cifar10.parallel import determinism, gpus
from cifar10.parallel.devices import Devices, choose
from cifar10.parallel.update import UpdateMode
from cifar10.run import deletion, saved, warm_start
from cifar10.run.record import RunRecord, own_sha256, versions
from cifar10.run.train_dir import ANOTHER_RUN, TrainDir
from cifar10.run.warm_start import WarmStart
from cifar10.settings import rates
from cifar10.settings.definition import Change, fields
from cifar10.settings.presets import PRESETS, default_rates
from cifar10.settings.training import GROUPS, TowerSettings, TrainSettings
from cifar10.training import undecided

_FEW_STEPS = 50  # fewer teach little


class Plan(NamedTuple):
    """A run, before its graph is built.

    Attributes:
      settings: with the number of towers, the batch size, the learning rates and the precision of this run.
      recipe: the network, the optimizer and the augmentation.
      data: the training images.
      devices: the devices of all machines, with the towers on them.
      mode: the update mode.
      checkpoint: prefix of the checkpoint that the run starts from, or None.
      step, last_step: the step of that checkpoint, and the one that the run ends after.
      warm_start: what a new run takes from another model, or None.
    """
    settings: TrainSettings
    recipe: Recipe
    data: Records
    devices: Devices
    mode: UpdateMode
    checkpoint: str | None
    step: int
    last_step: int
    warm_start: WarmStart | None = None

    @property
    def examples_per_step(self) -> int:
        """Examples of all towers in a step."""
        return self.mode.batches * self.settings.towers.batch_size

    @property
    def examples_per_gradient(self) -> int:
        """Number of examples in an applied gradient: of a whole step, or of one tower that applies its own."""
        return self.settings.towers.batch_size if self.mode.drifts else self.examples_per_step

    @property
    def finished(self) -> bool:
        """Whether no step remains."""
        return self.step >= self.last_step

    def record(self) -> RunRecord:
        """Returns the record of a start that takes this plan. Its data can be found from any working directory."""
        settings = self.settings.replace(data_dir=os.path.abspath(self.settings.data.data_dir))
        devices, data = self.devices, self.data
        return RunRecord(
            settings, step=self.step, last_step=self.last_step, classes=data.classes, examples=data.count,
            images_sha256=data.digest(), test_sha256=records.of(settings.data, records.TEST).digest(),
            network_sha256=own_sha256(NETWORKS, settings.recipe.network),
            optimizer_sha256=own_sha256(OPTIMIZERS, settings.recipe.optimizer),
            warm_start_sha256=self.warm_start.sha256 if self.warm_start else None,
            devices=tuple(devices.place(k) for k in range(devices.num_towers)), groups=len(devices.groups),
            on_gpus=devices.on_gpus, threads=len(os.sched_getaffinity(0)), versions=versions(devices.on_gpus))


@dataclasses.dataclass
class Start:
    """A run that is about to start: what was asked for, and what the stages have decided so far.

    Attributes:
      settings: as the user gave them.
      devices: the devices of the towers; given beforehand, as in a cluster, or chosen by a stage.
      data: the training images, which the caller provides before the stages of WITH_DATA.
      expected: the data set, if its files do not exist yet.
      replaces: whether an earlier run in the directory is to be deleted: with `--restart`, or without a checkpoint.
      plan: the result.
    """
    settings: TrainSettings
    devices: Devices | None = None
    data: Records | None = None
    expected: records.Expected | None = None
    replaces: bool = False
    plan: Plan | None = None

    @property
    def directory(self) -> TrainDir:
        """The train_dir."""
        return TrainDir(self.settings.run.train_dir)


# The stages.

def check_network(start: Start) -> list[str]:
    """Checks that there is such a network; of a built-in one, that it takes the images and can be divided as asked."""
    settings = start.settings
    network = settings.recipe.network
    NETWORKS.load(network)
    if not NETWORKS.is_own(network):  # a user's own is built only for the classes of the data
        recipe = Recipe(settings.recipe, NUM_CLASSES, image_size=settings.data.image_size)
        recipe.check_parts(settings.towers.gpus_per_tower)
    return []


def check_optimizer(start: Start) -> list[str]:
    """Checks that there is such an optimizer, and that the update mode supports it, with clipping if asked."""
    recipe, update = start.settings.recipe, start.settings.towers.variable_update
    averages_within = UPDATE_MODES.load(update).uses_strategy
    OPTIMIZERS.load(recipe.optimizer)
    if recipe.clip_norm and averages_within:
        raise UsageError(f'--clip_norm={recipe.clip_norm:g} clips the mean of all gradients together, but '
                         f"--variable_update={update} averages each variable's gradients separately; use "
                         '--variable_update=replicated, which takes the same steps')
    OPTIMIZERS.check(recipe.optimizer, averages_within)
    return []


def choose_devices(start: Start) -> list[str]:
    """Chooses devices of this machine and claims their GPUs for this process, unless there are devices already."""
    towers = start.settings.towers
    devices = start.devices or local_devices(towers)
    if towers.xla and not devices.on_gpus:
        raise UsageError('--xla compiles for GPUs, and the towers are on CPU devices; leave it out')
    if start.devices is None:
        gpus.claim(devices.num_gpus)
    if towers.deterministic:
        determinism.turn_on()
    start.devices = devices
    return []


def expect_data(start: Start) -> list[str]:
    """Finds the training images and makes no files, for a look at a start; says how the run would begin to make them.

    A start that goes on to train has its data from its caller, who makes their files.
    """
    settings = start.settings
    start.expected = records.expected(settings.data)
    if start.expected is None:
        if settings.reports.eval_steps:
            records.of(settings.data, records.TEST)
        start.data = records.of(settings.data)
        return []
    start.data = start.expected.parts[records.TRAIN]
    return [f'data       {settings.data.dataset}: the run would begin by {start.expected.how}, into '
            f'{start.data.folder}']


def check_directory(start: Start) -> list[str]:
    """Checks that the run can use its directory: no other process trains there, and it holds no other run."""
    start.directory.check()
    start.directory.refuse_another_process()
    start.replaces = _replaces(start)
    return []


def decide(start: Start) -> list[str]:
    """Decides on a Plan: where the run starts, how many towers it has, in which precision it computes, how long."""
    # Checked before the images were prepared too, but only under the lock does no other process change the directory.
    start.replaces = _replaces(start)
    prefix = None if start.replaces else saved.newest_of_run(start.directory)
    step, examples_seen = saved.progress(prefix) if prefix else (0, 0)
    # Not of a later start, which took no step that was saved.
    stored = start.directory.record_of(step) if prefix else None
    settings = undecided.decided(start.settings, start.devices, stored.settings.flat() if stored else {})
    plan = plan_of(settings, start.data, start.devices, prefix, step)
    if plan.recipe.total_examples is not None:
        remaining = max(plan.recipe.total_examples - examples_seen, 0)
        plan = plan._replace(last_step=step + math.ceil(remaining / plan.examples_per_step))
    start.plan, warm = _with_warm_start(plan, stored, start.directory)
    if plan.finished:
        return []
    recipe, towers = settings.recipe, settings.towers
    changes = stored.difference_to(_chosen(settings, Change.REPORTED)) if stored else {}
    return [*undecided.emulated(towers, start.devices),
            *([f"changed    {', '.join(changes.values())}"] if changes else []),
            *undecided.waiting(towers, start.devices),
            *(stored.code_changes(network=recipe.network, optimizer=recipe.optimizer) if stored else []),
            *undecided.rounded(start.settings, settings), *warm, *plan.recipe.warnings]


def recipe_of(settings: TrainSettings, data: Records) -> Recipe:
    """Returns the recipe of a run, given its training images."""
    return Recipe(settings.recipe, len(data.classes), settings.run.seed, data.count, settings.run.epochs, data.size)


def plan_of(settings: TrainSettings, data: Records, devices: Devices, prefix: str | None, step: int) -> Plan:
    """Returns the Plan of a run whose settings are all decided; it ends after `max_steps`.

    Args:
      settings: with the number of towers, the batch size, the learning rates and the precision.
      data: the training images.
      devices: to spread the towers over.
      prefix: of the checkpoint that the run starts from, or None.
      step: of the checkpoint.
    """
    towers = settings.towers
    recipe = recipe_of(settings, data)
    dtype = PRECISIONS.load(towers.precision).dtype
    recipe.check(towers.batch_size, dtype)
    recipe.check_parts(towers.gpus_per_tower)
    devices = devices.with_towers(towers.num_towers)
    return Plan(settings, recipe, data, devices, mode_of(towers, devices), prefix, step, settings.run.max_steps)


def mode_of(towers: TowerSettings, devices: Devices) -> UpdateMode:
    """Returns a new update mode for a run, given the devices with its towers."""
    mode = UPDATE_MODES.load(towers.variable_update)
    return mode(devices, towers.local_steps) if mode.drifts else mode(devices)


def refuse_other_images(start: Start) -> list[str]:
    """Checks that a resumed run was trained on as many images of the same classes, if they exist already.

    Changed images are only reported; they may have been repaired.
    """
    stored = start.directory.stored() if start.plan.checkpoint else None
    if stored is None or not os.path.isdir(start.data.folder):
        return []
    stored.refuse_another(dict(classes=start.data.classes, examples=start.data.count),
                          f'--train_dir={start.directory.path}', ANOTHER_RUN)
    digests = {'training': dict(images_sha256=start.data.digest()),
               'test': dict(test_sha256=records.of(start.settings.data, records.TEST).digest())}
    return [f'changed    the {part} images: other files, or other contents' for part, digest in digests.items()
            if stored.difference_to(digest)]


def describe(start: Start) -> list[str]:
    """Returns the lines that describe the training before the first step."""
    plan = start.plan
    settings = plan.settings
    recipe, towers = settings.recipe, settings.towers
    examples = plan.examples_per_step
    each = f' ({towers.batch_size} of each tower)' if plan.mode.batches > 1 else ''
    every = 'step' if towers.local_steps == 1 else f'{towers.local_steps} steps, more often at the start'
    averages = f', averaged every {every}' if towers.local_steps else ''
    auxiliary = f' (auxiliary {recipe.auxiliary_learning_rate:g})' if recipe.auxiliary_learning_rate else ''
    servers = [server for server in plan.devices.servers if '/job:ps' in server]
    idle = []
    if servers and plan.mode.has_copies:
        idle = [f'idle       {len(servers)} ps, because {towers.variable_update} keeps a copy of the variables on each '
                'device; leave out --ps_hosts']
    return [f'recipe     {plan.recipe}, {towers.precision}',
             f'towers     {plan.devices.num_towers} on {plan.devices}',
             f'update     {towers.variable_update}{averages}',
             f'data       {plan.data}, fed as {plan.recipe.fed}',
             f'batch      {examples} a step{each}; {plan.data.count / examples:.1f} steps an epoch',
             f'rate       {recipe.learning_rate:g}{auxiliary}, {plan.recipe.schedule.describe(examples)}',
            *idle]


def advise(start: Start) -> list[str]:
    """Returns a line with the rates to try in a new run whose steps have other examples than its rates are for.

    No advice if the user gave a rate.
    """
    plan, given = start.plan, start.settings.recipe
    recipe = plan.settings.recipe
    if plan.checkpoint or not given.learning_rate is given.auxiliary_learning_rate is None:
        return []
    chosen, examples = default_rates(recipe.preset, recipe.optimizer), plan.examples_per_gradient
    if examples == chosen.examples:
        return []
    epochs = plan.last_step * plan.examples_per_step / plan.data.count
    to_try = rates.to_try(recipe.optimizer, chosen, examples, epochs)
    flags = ' '.join(f'--{name}={value:.3g}' for name, value in to_try.items() if not getattr(given, name))
    is_presets = recipe.optimizer == PRESETS[recipe.preset]['optimizer']
    whose = f"the {recipe.preset} recipe's" if is_presets else f"{recipe.optimizer}'s default"
    here = f'{examples:,}' if examples == plan.examples_per_step else f'{examples:,} of each tower'
    return [f'advice     {whose} rate is for {chosen.examples} examples a step; with {here} try {flags}']


def describe_run(start: Start) -> list[str]:
    """Returns the lines about the progress and the place of the run."""
    plan = start.plan
    run = plan.settings.run
    lines = []
    if plan.finished:
        progress = f'at step {plan.step}'
    elif plan.step:
        progress = f'resumed at step {plan.step} of {plan.last_step}'
    else:
        progress = f'new, to step {plan.last_step}'
    if run.epochs and not plan.step and 0 < plan.last_step < _FEW_STEPS:
        count = f"{plan.last_step} step{'s' * (plan.last_step > 1)}"
        lines.append(f'warning: the run has only {count}; use a smaller --batch_size or more --epochs')
    lines += [f'run        {run.train_dir}, {progress}',
              f'watch      tensorboard --logdir {os.path.abspath(run.train_dir)}']
    if plan.finished:
        flag, length = ('--epochs', f'{run.epochs:g}') if run.epochs else ('--max_steps', run.max_steps)
        remedy = '' if plan.settings.recipe.schedule in TO_THE_END else f'; a larger {flag} continues it'
        lines.append(f'done       the run is at step {plan.step}, and {flag}={length} asks for no more{remedy}')
    else:
        lines += _untraced(plan)
    return lines


def _untraced(plan):
    """Returns a line about steps that should be traced but are not taken by this start; [] if all are."""
    first, last = plan.settings.reports.traced_steps
    if not first or plan.step < first <= last <= plan.last_step:
        return []
    begin, end = max(first, plan.step + 1), min(last, plan.last_step)
    traced = 'none of them is' if begin > end else f'only {begin} to {end} are'
    return [f'untraced   --profile_steps={first}:{last}: this start takes the steps {plan.step + 1} to '
            f'{plan.last_step}, so {traced} traced']


BEFORE_DATA = (check_network, check_optimizer, choose_devices, check_directory)
WITH_DATA = (decide, refuse_other_images, describe, advise, describe_run)


def local_devices(towers: TowerSettings) -> Devices:
    """Returns the devices of this machine that the towers get."""
    return choose(towers.num_gpus, towers.tower_device, towers.gpus_per_tower)


def refuse_another_run(directory: TrainDir, settings: TrainSettings) -> None:
    """Raises a UsageError if the directory holds a run with settings that may not change in a run, or only records.

    Settings without a checkpoint are of a run that failed before its first one: there is nothing to resume.
    """
    stored = directory.stored()
    if stored is None:
        deletion.refuse_records_without_run(directory)
    if stored is None or not directory.checkpoints():
        return
    changes = stored.difference_to(_chosen(settings, Change.NEVER))
    preset, epochs = (stored.difference_to({name: settings.flat()[name]}).get(name) for name in ('preset', 'epochs'))
    if epochs and not changes and settings.recipe.schedule in TO_THE_END:
        changes = dict(epochs=f'{epochs}, at whose end the learning rate reaches 0')
    elif epochs and not changes and ',' in (settings.recipe.sizes or ''):
        changes = dict(epochs=f'{epochs}, which the image sizes divide into parts')
    if preset and len(changes) > 1:
        changes = dict(preset=preset, **{name: changes[name] for name in ('dataset', 'seed') if name in changes})
    if changes:
        raise UsageError(f"--train_dir={directory.path} holds a run with {', '.join(changes.values())}; repeat its "
                         f'flags to go on with it, {ANOTHER_RUN}')


def _chosen(settings, change):
    """Returns the settings that may change in a run as `change` says, by their names."""
    values = settings.flat()
    return {field.name: values[field.name] for field in fields(*GROUPS) if field.metadata['change'] is change}


def _replaces(start):
    """Returns whether an earlier run is to be deleted; raises a UsageError if one must stay that is another run."""
    if start.settings.run.restart:
        return deletion.has_run(start.directory)
    refuse_another_run(start.directory, start.settings)
    return start.directory.stored() is not None and not start.directory.checkpoints()


def _with_warm_start(plan, stored, directory):
    """Returns (the plan with the model that a new run starts from, notes about it).

    A resumed run keeps the model that it started from, whatever the user gives now.

    Args:
      plan: the plan of the run so far.
      stored: what the run has stored of itself, or None.
      directory: the train_dir, whose run a start without a checkpoint deletes.
    """
    settings = plan.settings
    given = settings.run.warm_start
    if plan.checkpoint:
        taken = stored.settings.run.warm_start if stored else None
        notes = [f'ignored    --warm_start={given}: the run goes on from its own checkpoint'] if given else []
        return plan._replace(settings=settings.replace(warm_start=taken)), notes
    values, notes = {}, []
    pattern = settings.recipe.freeze
    variables = variables_of(plan) if given or pattern else {}
    if given:
        prefix = warm_start.find(given)
        if deletion.deletes(directory, prefix):
            raise UsageError(f'--warm_start={given} is a model of the run in {directory.path}, which this start '
                             'deletes; use another --train_dir')
        found = warm_start.read(prefix, variables)
        plan = plan._replace(settings=settings.replace(warm_start=found.prefix), warm_start=found)
        values = found.values
        notes += [f'warm start {found}', *_other_classes(given, found, plan.data.classes)]
    untrained = [name for name in variables if pattern and re.search(pattern, name) and name not in values]
    if untrained:
        notes.append(f'warning: --freeze={pattern} leaves {listed(untrained)} at initial values, which '
                     'nothing has trained; start from a model with --warm_start')
    return plan, notes


def _other_classes(given, found, classes):
    """Returns a warning if a warm start takes a last layer for as many classes that are others, or in another order."""
    with contextlib.suppress(UsageError):  # what another program has stored
        stored = TrainDir(os.path.dirname(found.prefix)).stored()
        if stored and len(stored.classes) == len(classes) and (changes := stored.difference_to(dict(classes=classes))):
            return [f"warning: --warm_start={given} is of a run with {changes['classes']}, so its last layer stands "
                    'for others than here']
    return []


def variables_of(plan: Plan) -> dict[str, Any]:
    """Returns the variables of the network of a plan, as `Recipe.variables` does."""
    towers = plan.settings.towers
    return plan.recipe.variables(towers.batch_size, PRECISIONS.load(towers.precision).dtype)
