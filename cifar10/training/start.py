"""The start of a run: stages that look at the machine and at train_dir, and decide on a Plan.

A stage adds what it decides to a Start, and returns the lines that a person should read; it prints nothing and writes
nothing. Training stops at the first stage that fails; `--check` continues with the stages that do not depend on it.
"""
import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Iterator

from cifar10.base.directories import BEST
from cifar10.base.errors import UsageError, listed
from cifar10.base.registry import DATASETS, NETWORKS, OPTIMIZERS, TO_THE_END, UPDATE_MODES
from cifar10.data import records
from cifar10.data.download import DownloadError
from cifar10.data.records import Expected, Records
from cifar10.model import NUM_CLASSES
from cifar10.model.recipe import Recipe
from cifar10.parallel import gpus, session_config
from cifar10.parallel.devices import Devices, choose
from cifar10.run import deletion, saved
from cifar10.run.names import step_of
from cifar10.run.record import RunRecord, own_sha256, versions
from cifar10.run.train_dir import TrainDir
from cifar10.settings.definition import Change, Of, fields
from cifar10.settings.training import GROUPS, TowerSettings, TrainSettings, as_flags
from cifar10.training import undecided, warm_start
from cifar10.training.plan import Plan, plan_of

# Settings that determine which variables there are, so that another value asks for a new run with those that fit.
_OF_THE_VARIABLES = {'preset', 'network', 'widths', 'image_size'}


@dataclasses.dataclass
class Start:
    """A run that is about to start: what was asked for, and what the stages have decided so far.

    Attributes:
      settings: as the user gave them.
      devices: the devices of the towers; given beforehand, as in a cluster, or chosen by a stage.
      data: the training images, which the caller provides after the stages of BEFORE_DATA.
      expected: the data set, if its files do not exist yet.
      replaces: whether an earlier run in the directory is to be deleted: with `--restart`, or without a checkpoint.
      plan: the result.
    """
    settings: TrainSettings
    devices: Devices | None = None
    data: Records | None = None
    expected: Expected | None = None
    replaces: bool = False
    plan: Plan | None = None

    @property
    def directory(self) -> TrainDir:
        """The train_dir."""
        return TrainDir(self.settings.run.train_dir)


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
                         '--variable_update=replicated, which takes the same steps, or --clip_norm=0')
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
        session_config.turn_on_determinism()
    start.devices = devices
    return []


def local_devices(towers: TowerSettings) -> Devices:
    """Returns the devices of this machine that the towers get."""
    return choose(towers.num_gpus, towers.tower_device, towers.gpus_per_tower)


def expect_data(start: Start) -> list[str]:
    """Finds the training images and makes no files, for a look at a start; says how the run would begin to make them.

    A start that goes on to train has its data from its caller, who makes their files.
    """
    settings = start.settings
    find_images(start)
    start.expected = records.expected(settings.data)
    if start.expected is None:
        records.prepared(settings.data, records.TEST).digest()  # the record of the start has it
        start.data = records.prepared(settings.data)
        return []
    with offering_shapes(start):
        start.expected.check_source()
    start.data = start.expected.parts[records.TRAIN]
    return [f'data       {settings.data.dataset}: the run would begin by {start.expected.how}, into '
            f'{start.data.folder}']


@contextlib.contextmanager
def offering_shapes(start: Start) -> Iterator[None]:
    """Context in which a failed download offers other images, but not to a run or a model that has its own."""
    try:
        yield
    except DownloadError as error:
        if start.settings.run.warm_start or start.directory.checkpoints():
            raise
        raise UsageError(f'{error}, or use --dataset=shapes --train_dir=/tmp/shapes, '
                         'which needs no network') from error


def check_directory(start: Start) -> list[str]:
    """Checks that the run can use its directory: no other process trains there, and it holds no other run."""
    start.directory.check()
    start.directory.refuse_another_process()
    best = os.path.join(start.directory.path, BEST)
    if start.settings.reports.keep_best and os.path.islink(best) and not os.path.exists(best):
        raise UsageError(f'--keep_best: {best} is a link to nothing; make the folder that it leads to, or remove it')
    _refuse_among_images(start.directory.path, start.settings.data.dataset)
    start.replaces = _replaces(start)
    return []


def _refuse_among_images(train_dir, dataset):
    """Raises a UsageError if the folders of a run would lie among those of the classes of a user's own images."""
    if not DATASETS.is_own(dataset):
        return
    parts = [os.path.join(dataset, part) for part in (records.TRAIN, records.TEST)]
    folders = [dataset] if not any(map(os.path.isdir, parts)) else parts
    for folder in map(os.path.realpath, folders):
        if os.path.commonpath([folder, os.path.realpath(train_dir)]) == folder:
            raise UsageError(f'--train_dir={train_dir} is in the folder of the images, {folder}, where folders are '
                             'classes; use one outside it (a run that is there can be moved)')


def find_images(start: Start) -> list[str]:
    """Checks that the images of a run that goes on are where it had them, if they are the user's own."""
    stored = None
    with contextlib.suppress(UsageError):  # which `check_directory` raises
        stored = start.directory.stored()
    if stored and stored.settings.data.dataset == start.settings.data.dataset:
        stored.refuse_moved_images(start.directory.path)
    return []


BEFORE_DATA = (check_network, check_optimizer, choose_devices, check_directory, find_images)


def decide(start: Start) -> list[str]:
    """Decides on a Plan: where the run starts, how many towers it has, in which precision it computes, how long."""
    # Checked before the images were prepared too, but only under the lock does no other process change the directory.
    start.replaces = _replaces(start)
    prefix = None if start.replaces else saved.newest_of_run(start.directory)
    step, examples_seen = saved.progress(prefix) if prefix else (0, 0)
    # The record of the start that saved the checkpoint; later starts may have saved nothing.
    stored = start.directory.record_of(step) if prefix else None
    settings = undecided.decided(start.settings, start.devices, stored.settings.flat() if stored else {})
    plan = plan_of(settings, start.data, start.devices, prefix, step)
    if plan.recipe.total_examples == 0:
        raise UsageError(f'--epochs={settings.run.epochs:g} of {plan.data.count:,} images is less than one image; give '
                         'more')
    plan.recipe.check(settings.towers.batch_size, plan.precision.dtype, plan.mode.has_copies)
    plan.recipe.check_parts(settings.towers.gpus_per_tower)
    if examples_seen is None:
        examples_seen = plan.assumed_examples
    if plan.recipe.total_examples is not None:
        remaining = max(plan.recipe.total_examples - examples_seen, 0)
        plan = plan._replace(last_step=step + math.ceil(remaining / plan.examples_per_step))
    start.plan, warm = _with_warm_start(plan, stored, start.directory)
    if plan.finished:
        return []
    recipe, towers = settings.recipe, settings.towers
    changes = stored.difference_to(_chosen(settings, Change.REPORTED, Change.FREE)) if stored else {}
    return [*undecided.emulation_warning(towers, start.devices),
            *([f"changed    {', '.join(changes.values())}"] if changes else []),
            *undecided.unused_devices(towers, start.devices),
            *(stored.code_changes(network=recipe.network, optimizer=recipe.optimizer) if stored else []),
            *undecided.rounded_intervals(start.settings, settings), *warm, *plan.recipe.warnings]


def refuse_other_images(start: Start) -> list[str]:
    """Checks that a resumed run was trained on as many images of the same classes.

    Changed images are only reported; they may have been repaired. Where a user's own images have not been read yet,
    each file counts as one: there are up to as many images.
    """
    stored = start.directory.stored() if start.plan.checkpoint else None
    if stored is None:
        return []
    data, are_read = start.data, os.path.isdir(start.data.folder)
    where, remedy = start.directory.given, deletion.remedy(start.directory, warm_start=True)
    stored.refuse_another(dict(classes=data.classes), where, remedy)
    if not are_read and stored.examples is not None and data.count > stored.examples:
        return [f'unread     {data.count:,} files for training, and the run has {stored.examples:,} images: unless the '
                f'other {data.count - stored.examples:,} cannot be read, the start is refused']
    stored.refuse_another(dict(examples=data.count), where, remedy)
    if not are_read:
        return []
    digests = {'training': dict(images_sha256=start.data.digest()),
               'test': dict(test_sha256=records.prepared(start.settings.data, records.TEST).digest())}
    return [f'changed    the {part} images: other files, or other contents' for part, digest in digests.items()
            if stored.difference_to(digest)]


def refuse_another_run(directory: TrainDir, settings: TrainSettings) -> None:
    """Raises a UsageError if the directory holds a run with settings that may not change in a run, or only remains.

    Settings without a checkpoint are of a run that failed before its first one: there is nothing to resume.
    """
    deletion.refuse_remains(directory)
    stored = directory.stored()
    checkpoints = directory.checkpoints()
    if stored is None or not checkpoints:
        return
    before, now = stored.settings.flat(), settings.flat()
    names, reason = list(stored.difference_to(_chosen(settings, Change.NEVER))), ''
    others = stored.difference_to({name: now[name] for name in ('preset', 'epochs')})
    if 'epochs' in others and not names and settings.recipe.schedule in TO_THE_END:
        names, reason = ['epochs'], ', at whose end the learning rate reaches 0'
    elif 'epochs' in others and not names and ',' in (settings.recipe.sizes or ''):
        names, reason = ['epochs'], ', which the image sizes divide into parts'
    if 'preset' in others and len(names) > 1:
        names = ['preset', *(name for name in ('dataset', 'seed') if name in names)]
    if names:
        has_ended = stored.last_step is not None and max(map(step_of, checkpoints)) >= stored.last_step
        offers_variables = _OF_THE_VARIABLES & set(names) or 'dataset' in names and DATASETS.is_own(now['dataset'])
        was = f'run of {_phrase(before, names)}'.replace('run of a run', 'run')
        raise UsageError(f"{directory.given} has {'a finished' if has_ended else 'an unfinished'} {was}{reason}. "
                         f'For {_phrase(now, names)} {deletion.remedy(directory, bool(offers_variables))}'
                         f'{_how_to_go_on(stored, has_ended, settings)}')


def _phrase(values, names):
    """Returns settings as flags: '--seed=5', 'a run without --freeze', or '--seed=5 without --freeze'."""
    given = as_flags({name: values[name] for name in names}) or ['a run']
    missing = [f'--{name}' for name in names if values[name] is None]
    return ' '.join([*given, *(['without', listed(missing)] if missing else [])])


def _how_to_go_on(stored, has_ended, settings):
    """Returns the end of a remedy: the command that goes on with a run, if any does.

    Args:
      stored: the record of the run.
      has_ended: whether it has its full length.
      settings: of a start that would be another run; its length is taken if it is the longer one.
    """
    if not has_ended:
        return f'; to continue it: {stored.command}'
    recipe = stored.settings.recipe
    if recipe.schedule in TO_THE_END or ',' in (recipe.sizes or ''):  # whose length is a part of the recipe
        return ''
    steps = settings.run.max_steps or 0
    longer = steps if steps > stored.last_step else 2 * stored.last_step
    command = stored._replace(settings=stored.settings.replace(max_steps=longer, epochs=None)).command
    return f'; to train it further: {command}'


def _chosen(settings, *changes):
    """Returns the settings of the run that may change as one of `changes` says, by their names; not its length."""
    values = settings.flat()
    return {field.name: values[field.name] for field in fields(*GROUPS) if field.metadata['of'] is Of.RUN
            and field.metadata['change'] in changes and field.name not in ('max_steps', 'epochs')}


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
    towers = settings.towers
    variables = plan.recipe.variables(towers.batch_size, plan.precision.dtype) if given or pattern else {}
    if given:
        prefix = warm_start.find(given)
        if deletion.deletes(directory, prefix):
            raise UsageError(f'--warm_start={given} is a model of the run in {directory.path}, which this start '
                             'deletes; use another --train_dir')
        values, taken = warm_start.read(prefix, variables)
        plan = plan._replace(settings=settings.replace(warm_start=prefix), first_values=values)
        notes += [f'warm start {taken}', *_other_classes(given, prefix, plan.data.classes)]
    untrained = [name for name in variables if pattern and re.search(pattern, name) and name not in values]
    if untrained:
        notes.append(f'warning: --freeze={pattern} leaves {listed(untrained)} at initial values, which '
                     'nothing has trained; start from a model with --warm_start')
    return plan, notes


def _other_classes(given, prefix, classes):
    """Returns a warning if a warm start takes a last layer for as many classes that are others, or in another order."""
    with contextlib.suppress(UsageError):  # what another program has stored
        stored = TrainDir(os.path.dirname(prefix)).stored()
        if stored and len(stored.classes) == len(classes) and (changes := stored.difference_to(dict(classes=classes))):
            return [f"warning: --warm_start={given} is of a run with {changes['classes']}, so its last layer stands "
                    'for others than here']
    return []


def record_of(plan: Plan) -> RunRecord:
    """Returns the record of a start that takes a plan. Its data can be found from any working directory."""
    settings = plan.settings.replace(data_dir=os.path.abspath(plan.settings.data.data_dir))
    devices, data, taken = plan.devices, plan.data, plan.first_values
    return RunRecord(
        settings, step=plan.step, last_step=plan.last_step, classes=data.classes, examples=data.count,
        images_sha256=data.digest(), test_sha256=records.prepared(settings.data, records.TEST).digest(),
        network_sha256=own_sha256(NETWORKS, settings.recipe.network),
        optimizer_sha256=own_sha256(OPTIMIZERS, settings.recipe.optimizer),
        warm_start_sha256=saved.digest_of(taken) if taken else None,
        devices=tuple(devices.place(k) for k in range(devices.num_towers)), groups=len(devices.groups),
        on_gpus=devices.on_gpus, threads=len(os.sched_getaffinity(0)),
        versions=versions(devices.on_gpus))
