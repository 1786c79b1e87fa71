"""The start of a run: stages that look at the machine, the data set and train_dir, before `decide` makes a Plan.

A stage adds what it finds to a Start, and returns lines to print; it writes nothing. Training
stops at the first stage that fails; `--check` continues with the stages that do not depend on it.
"""
import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping

import tensorflow.compat.v1 as tf

from cifar10.base import graphs
from cifar10.base.console import Line
from cifar10.base.directories import check_dir, refuse_of_others
from cifar10.base.errors import UsageError
from cifar10.base.files import in_bytes, shortage
from cifar10.base.registry import AUGMENTATIONS, LOSSES, NETWORKS, OPTIMIZERS, OWN, UPDATE_MODES
from cifar10.data import records
from cifar10.data.download import DownloadError
from cifar10.data.records import Expected, Records
from cifar10.model import NUM_CLASSES
from cifar10.model.recipe import Recipe
from cifar10.parallel import gpus
from cifar10.parallel.devices import Devices, choose
from cifar10.run import checkpoint, saved, takeover
from cifar10.run.folder import Folder, exists, look
from cifar10.run.record import RunRecord
from cifar10.run.train_dir import TrainDir
from cifar10.settings.presets import CLASSIC, UNWEIGHTED
from cifar10.settings.training import TowerSettings, TrainSettings
from cifar10.training.plan import Plan

# Settings of a recipe that a whole model has itself.
_OF_NETWORKS = ('preset', 'optimizer', 'learning_rate', 'weight_decay', 'schedule', 'loss',
                'clip_norm', 'warmup_epochs', 'label_smoothing', 'class_weights', 'freeze')
_NOT_FOR_XLA = (12, 0)  # the lowest compute capability; https://github.com/tensorflow/tensorflow/issues/111958


@dataclasses.dataclass
class Start:
    """A run that is about to start: the settings, and what the stages have found so far.

    Attributes:
      given: the settings as the user gave them.
      devices: the devices of the towers; given beforehand, as in a cluster, or chosen by a stage.
      folder: what is in the train_dir; a start looks early, and again once it has locked it.
      data, test: the training and the test images, which the caller provides after the stages of BEFORE_DATA.
      found: the data set, until it is prepared: it may have a long list of files.
      expected: the data set, if its files do not exist yet.
      restored: the checkpoint that the run continues from, or None.
      record: the record of the start that saved it; later starts may have saved nothing.
      plan: the result.
      compares: whether a user's own network is tried on random images again, where the run is resumed.
    """
    given: TrainSettings
    devices: Devices | None = None
    folder: Folder | None = None
    data: Records | None = None
    test: Records | None = None
    found: records.Found | None = None
    expected: Expected | None = None
    restored: saved.Saved | None = None
    record: RunRecord | None = None
    plan: Plan | None = None
    compares: bool = False

    def look(self) -> Folder:
        """Looks at the train_dir; raises a UsageError if the run may not use it. Returns what is there."""
        self.folder = look(self.given.run.train_dir)
        if problem := takeover.refusal(self.folder, self.given):
            raise UsageError(problem)
        return self.folder

    def handed_over(self) -> saved.Saved | None:
        """Returns `restored` and drops it: its values, which only the first session needs, may fill much memory."""
        restored, self.restored = self.restored, None
        return restored


def check_network(start: Start) -> list[str]:
    """Checks that the network exists; a built-in one must also take the images and have enough parts."""
    settings = start.given
    network = settings.recipe.network
    if NETWORKS.load(network).optimizer:
        _refuse_for_whole_model(settings)
    if not NETWORKS.is_own(network):  # a user's own is built only for the classes of the data
        recipe = Recipe(settings.recipe, NUM_CLASSES, image_size=settings.data.image_size)
        recipe.check_parts(settings.towers.gpus_per_tower)
    return []


def _refuse_for_whole_model(settings):
    """Raises a UsageError if a setting is for networks, whose recipe is the program's."""
    recipe, towers = settings.recipe, settings.towers
    whose = f'--network={recipe.network}, a whole model'
    usual = dict(CLASSIC, learning_rate=None, class_weights=UNWEIGHTED)
    for name in _OF_NETWORKS:
        value = getattr(recipe, name)
        if value not in (None, usual.get(name)):
            raise UsageError(f'--{name}={value} is for networks, but {whose}, has its own recipe; leave it out, and '
                             'set it in the model')
    if UPDATE_MODES.load(towers.variable_update).uses_strategy:
        raise UsageError(f'--variable_update={towers.variable_update} averages gradients within an optimizer of its '
                         f'own, but {whose}, has its train_op; use --variable_update=replicated')
    if towers.precision == 'fp16':
        raise UsageError(f'--precision=fp16 scales the loss, but {whose}, takes its gradients itself; use '
                         '--precision=bf16, or scale the loss in the model')


def check_optimizer(start: Start) -> list[str]:
    """Checks that the optimizer exists, and that the update mode supports it, with clipping if asked."""
    recipe, update = start.given.recipe, start.given.towers.variable_update
    averages_within = UPDATE_MODES.load(update).uses_strategy
    OPTIMIZERS.load(recipe.optimizer)
    if recipe.clip_norm and averages_within:
        raise UsageError(f'--clip_norm={recipe.clip_norm:g} clips the mean of all gradients together, but '
                         f"--variable_update={update} averages each variable's gradients separately; use "
                         '--variable_update=replicated, which takes the same steps, or --clip_norm=0')
    OPTIMIZERS.check(recipe.optimizer, averages_within)
    return []


def check_loss(start: Start) -> list[str]:
    """Checks that the loss exists and, if it is the user's own, that it follows the rules; returns warnings."""
    recipe = start.given.recipe
    return LOSSES.check(recipe.loss, AUGMENTATIONS.is_own(recipe.augmentation)) or []


def choose_devices(start: Start) -> list[str]:
    """Chooses devices of this machine and claims their GPUs for this process, unless there are devices already."""
    towers = start.given.towers
    devices = start.devices or local_devices(towers)
    if towers.xla and not devices.on_gpus:
        raise UsageError('--xla compiles for GPUs, but the towers are on CPU devices; leave it out')
    if start.devices is None:
        gpus.claim(devices.num_gpus)
    if towers.xla and max(gpus.capabilities()) >= _NOT_FOR_XLA:
        raise UsageError('--xla: TensorFlow up to 2.21 cannot compile for GPUs of compute capability 12 (Blackwell), '
                         'and would end the process; leave it out')
    if towers.deterministic:
        graphs.turn_on_determinism()
    start.devices = devices
    return []


def local_devices(towers: TowerSettings) -> Devices:
    """Returns the devices of this machine that the towers get."""
    return choose(towers.num_gpus, towers.tower_device, towers.gpus_per_tower)


def expect_data(start: Start) -> list[str]:
    """Finds the images for --check, without making files; returns a line on how the run would make them.

    Before a training, the caller makes the files and sets `data` and `test`.
    """
    settings = start.given
    find_images(start)
    start.expected = start.found.expected()
    if start.expected is None:
        prepare_data(start)
        return []
    start.data = start.expected.parts[records.TRAIN]
    return [Line('data', f'{settings.data.dataset}: the run would begin by {start.expected.how}, into '
                         f'{start.data.folder}')]


def prepare_data(start: Start) -> None:
    """Makes the images if their files do not exist, and sets `data` and `test`."""
    start.data, start.test = (start.found.prepared(part) for part in (records.TRAIN, records.TEST))
    start.found = None


@contextlib.contextmanager
def offering_shapes(start: Start) -> Iterator[None]:
    """Context in which a failed download offers other images, but not to a run or a model that has its own."""
    try:
        yield
    except DownloadError as error:
        if start.given.run.warm_start or start.folder.checkpoints:
            raise
        raise UsageError(f'{error}, or use --dataset=shapes --train_dir=/tmp/shapes, '
                         'which needs no network') from error


def check_directory(start: Start) -> list[str]:
    """Checks that the run can use its directory: no other process trains there, and it holds no other run."""
    path = start.given.run.train_dir
    given = f'--train_dir={path}'
    refuse_of_others(path, given)
    check_dir(path, '--train_dir')
    directory = TrainDir(path)
    directory.refuse_another_process()
    records.refuse_among_images(path, '--train_dir', start.given.data.dataset)
    folder = start.look()
    if takeover.sets_aside(folder, start.given):
        named = start.given.flat()
        own = [OWN[flag].divided(named[flag])[1] for flag in OWN if OWN[flag].is_own(named[flag])]
        directory.refuse_fixed(named['data_dir'], *(each.rpartition(':')[0] or each for each in own))
    if exists(path) and not folder.checkpoints:
        raise UsageError(f'{given} is a checkpoint; give the directory that contains it')
    return []


def find_images(start: Start) -> list[str]:
    """Finds the images: those that a run began with, if it is resumed with the same data set."""
    folder = start.folder = start.folder or look(start.given.run.train_dir)  # in a check, no stage has looked yet
    is_same = folder.record and folder.record.settings.data.dataset == start.given.data.dataset
    goes_on = is_same and folder.checkpoints and not start.given.run.restart
    start.found = records.find(start.given.data, folder.record.images_folder if goes_on else None)
    return []


BEFORE_DATA = (check_network, check_optimizer, check_loss, choose_devices, check_directory, find_images)


def find_checkpoint(start: Start) -> list[str]:
    """Looks again at the directory, which is now locked, and finds the checkpoint that the run continues from."""
    folder = start.look()
    if not start.given.run.restart:
        start.restored = saved.newest_of_run(folder)
    start.record = folder.record_of(start.restored.step) if start.restored else None
    return []


def refuse_other_images(start: Start) -> list[str]:
    """Checks that a resumed run was trained on as many images of the same classes.

    Changed images are only reported; they may have been repaired. Of a user's own images that have not been read yet,
    only the classes are known.
    """
    folder, record = start.folder, start.folder.record
    if not start.plan.checkpoint:
        return []
    data = start.data
    where, remedy = folder.given, takeover.remedy(folder, warm_start=True)
    record.refuse_another(dict(classes=data.classes), where, remedy)
    if not os.path.isdir(data.folder):
        return []
    record.refuse_another(dict(examples=data.count), where, remedy)
    digests = {'training': dict(images_sha256=data.digest), 'test': dict(test_sha256=start.test.digest)}
    if data.dataset.endswith(records.ARRAYS):  # which nobody repairs
        record.refuse_another({**digests['training'], **digests['test']}, where, remedy)
    return [Line('changed', f'the {part} images: other files, or other contents', note=True)
            for part, digest in digests.items() if record.difference_to(digest)]


def refuse_misfit(start: Start, variables: Mapping[str, tf.Variable]) -> None:
    """Raises a UsageError if the checkpoint that the run continues from lacks some of its variables."""
    found = start.restored and checkpoint.misfit(start.restored.shapes, variables)
    if found:
        remedy = takeover.remedy(start.folder, warm_start=True)
        raise UsageError(f'{start.restored.prefix} {found}; {remedy}')


def space_for_files(start: Start, variables: Collection[tf.Variable]) -> tuple[int, int, str]:
    """Returns (bytes of a checkpoint of some variables, bytes of all files that will be added, a phrase about both)."""
    plan = start.plan
    reports = plan.settings.reports
    size = sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)
    if keep := reports.max_to_keep:
        # One more than are kept: the oldest is removed only after the newest is written. Existing ones need no more.
        count = max(keep + 1 - len(start.folder.checkpoints), 1)
        limit = f'--max_to_keep={keep}'
    else:
        # With that of the last step, and one of --save_minutes.
        count = plan.last_step // reports.save_steps - plan.step // reports.save_steps + 2
        limit = f'all are kept, --save_steps={reports.save_steps}'
    if reports.keep_best:
        count += 2  # the best so far, and one that may be better
        limit += ', --keep_best'
    curves = _space_for_tensorboard(plan, len(variables))
    return size, size * count + curves, (
        f'TensorBoard takes about {in_bytes(curves)}, a checkpoint takes {in_bytes(size)}, {limit}')


def _space_for_tensorboard(plan, variables):
    """Estimates the bytes of the files for TensorBoard, as measured in runs of the built-in networks."""
    reports = plan.settings.reports
    lines, summaries, evaluations = ((plan.last_step - plan.step) // every if every else 0 for every in (
        reports.log_frequency, reports.summary_steps, reports.eval_steps))
    return (variables * (15_000 + 25 * lines + 2000 * summaries)
            + (50_000 + 32 * plan.data.size ** 2) * evaluations)


def check_space(space: tuple[int, int, str], train_dir: str) -> list[str]:
    """Raises a UsageError if the disk has no room for a checkpoint; returns a warning if it has none for all of them.

    Free space changes during a run, so only the first checkpoint must fit. `space` is what `space_for_files`
    returned.
    """
    one, added, what = space
    if problem := shortage(train_dir, '--train_dir', one, what):
        raise UsageError(problem)
    problem = shortage(train_dir, '--train_dir', added, what)
    return [Line('warning', problem)] if problem else []
