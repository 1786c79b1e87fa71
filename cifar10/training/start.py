"""Prepares a start before its Plan: checks settings that need no images, claims devices, and finds the images.

`prepared` calls the functions in their order. They write only missing images.
"""
import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from cifar10.base import graphs
from cifar10.base.console import Line
from cifar10.base.directories import check_dir
from cifar10.base.errors import UsageError
from cifar10.base.registry import AUGMENTATIONS, DATASETS, LOSSES, NETWORKS, OPTIMIZERS, OWN, UPDATE_MODES
from cifar10.data import datasets, folders
from cifar10.data.datasets import Found, ImageFiles
from cifar10.data.download import DownloadError
from cifar10.model import NUM_CLASSES
from cifar10.model.recipe import Recipe
from cifar10.parallel import gpus
from cifar10.parallel.devices import Devices, choose
from cifar10.run import takeover
from cifar10.run.folder import Folder, exists, look
from cifar10.run.takeover import TrainDir
from cifar10.settings.presets import CLASSIC, UNWEIGHTED
from cifar10.settings.training import TowerSettings, TrainSettings, completed

# Recipe settings that a whole model defines itself.
_OF_NETWORKS = ('preset', 'optimizer', 'learning_rate', 'weight_decay', 'schedule', 'loss',
                'clip_norm', 'warmup_epochs', 'label_smoothing', 'class_weights', 'freeze')
_OF_IMAGES = ('augmentation', 'sizes', 'image_size', 'test_fraction')
_NOT_FOR_XLA = (12, 0)  # the lowest compute capability; https://github.com/tensorflow/tensorflow/issues/111958


class Images(NamedTuple):
    """The images of a run, for training and for testing; None for a data set of the user's own batches."""
    train: ImageFiles | None
    test: ImageFiles | None


def prepared(settings: TrainSettings, devices: Devices | None = None,
             makes_images: bool = True) -> tuple[Devices, Images, list[Line]]:
    """Returns the claimed devices of the towers, the images of a run, and lines to print.

    Args:
      devices: the devices to train on; default: this machine's devices from the settings.
      makes_images: whether to create missing image files. If not, only the numbers of images are known.
    """
    folder = check_directory(settings)  # first: what belongs to the run there may exclude other remedies
    check_network(settings)
    check_optimizer(settings)
    check_loss(settings)
    devices = claimed(settings.towers, devices)
    if DATASETS.is_code(settings.data.dataset):
        return devices, Images(None, None), []
    found = find_images(settings, folder)
    if not makes_images and (expected := found.expected()):
        images = Images(*(expected.parts[part] for part in (datasets.TRAIN, datasets.TEST)))
        how = f'{settings.data.dataset}: the run would begin by {expected.how}, into {found.folder}'
        return devices, images, [Line('data', how)]
    with _offering_shapes(settings, folder):
        images = Images(*(found.images(part) for part in (datasets.TRAIN, datasets.TEST)))
    return devices, images, []


def check_network(settings: TrainSettings) -> None:
    """Checks that the network exists; a built-in one must also take the images and have enough parts."""
    network = settings.recipe.network
    if NETWORKS.load(network).model:
        _refuse_for_whole_model(settings)
    if DATASETS.is_code(settings.data.dataset):
        _refuse_for_batches(settings)
        return
    if not NETWORKS.is_own(network):  # a user's network needs the classes of the data
        recipe = Recipe(settings.recipe, NUM_CLASSES, image_size=settings.data.image_size)
        recipe.check_parts(settings.towers.gpus_per_tower)


def _refuse_for_whole_model(settings):
    recipe, towers = settings.recipe, settings.towers
    whose = f'--network={recipe.network}, a whole model'
    usual = dict(CLASSIC, learning_rate=None, class_weights=UNWEIGHTED)
    for name in _OF_NETWORKS:
        value = getattr(recipe, name)
        if value not in (None, usual.get(name)):
            raise UsageError(f'--{name}={value} is for networks, but {whose}, has its own recipe; leave it out, and '
                             'set it in the model')
    if UPDATE_MODES.load(towers.variable_update).uses_strategy:
        raise UsageError(f'--variable_update={towers.variable_update} averages gradients in its own optimizer, but '
                         f'{whose}, has its own train_op; use --variable_update=replicated')
    if towers.precision == 'fp16':
        raise UsageError(f'--precision=fp16 scales the loss, but {whose}, computes its own gradients; use '
                         '--precision=bf16, or scale the loss in the model')


def _refuse_for_batches(settings):
    """Raises a UsageError if a setting requires images, but the data set has arbitrary batches."""
    data, usual = f'--dataset={settings.data.dataset}', completed({}).flat()
    if not NETWORKS.load(settings.recipe.network).model:
        raise UsageError(f'{data} gives batches to a model function, but --network={settings.recipe.network} is a '
                         'network for images; use --network=FILE.py:FUNCTION with features, labels and mode')
    for name in _OF_IMAGES:
        if (value := settings.flat()[name]) not in (None, usual[name]):
            raise UsageError(f'--{name}={value} is for images, but {data} gives batches; leave it out')


def check_optimizer(settings: TrainSettings) -> None:
    """Checks that the optimizer exists, and that the update mode supports it, with any clipping."""
    recipe, update = settings.recipe, settings.towers.variable_update
    averages_within = UPDATE_MODES.load(update).uses_strategy
    OPTIMIZERS.load(recipe.optimizer)
    if recipe.clip_norm and averages_within:
        raise UsageError(f'--clip_norm={recipe.clip_norm:g} is incompatible with --variable_update={update}; use '
                         '--variable_update=replicated, which takes the same steps, or --clip_norm=0')
    OPTIMIZERS.check(recipe.optimizer, averages_within)


def check_loss(settings: TrainSettings) -> None:
    """Checks that the loss and the augmentation exist."""
    LOSSES.load(settings.recipe.loss)
    AUGMENTATIONS.load(settings.recipe.augmentation)


def claimed(towers: TowerSettings, devices: Devices | None = None) -> Devices:
    """Claims this machine's GPUs for this process; returns its devices, or `devices`, which are already claimed."""
    chosen = devices or local_devices(towers)
    if towers.xla and not chosen.on_gpus:
        raise UsageError('--xla compiles for GPUs, but the towers are on CPU devices; leave it out')
    if devices is None:
        gpus.claim(chosen.num_gpus)
    if towers.xla and max(gpus.capabilities()) >= _NOT_FOR_XLA:
        raise UsageError('--xla: TensorFlow up to 2.21 cannot compile for GPUs of compute capability 12 (Blackwell), '
                         'and would end the process; leave it out')
    if towers.deterministic:
        graphs.turn_on_determinism()
    return chosen


def local_devices(towers: TowerSettings) -> Devices:
    """Returns this machine's devices for the towers."""
    return choose(towers.num_gpus, towers.tower_device, towers.gpus_per_tower)


def check_directory(settings: TrainSettings) -> Folder:
    """Checks that the run can use its directory: no other process trains there, and it holds no other run."""
    path = settings.run.train_dir
    given = f'--train_dir={path}'
    check_dir(path, '--train_dir')
    directory = TrainDir(path)
    directory.refuse_another_process()
    datasets.refuse_among_images(path, '--train_dir', settings.data.dataset)
    folder = usable_folder(settings)
    if not folder.record:
        folders.refuse_among_pictures(path, '--train_dir')
    if takeover.sets_aside(folder, settings):
        named = settings.flat()
        own = [OWN[flag].divided(named[flag])[1] for flag in OWN if OWN[flag].is_own(named[flag])]
        directory.refuse_fixed(named['data_dir'], *(each.rpartition(':')[0] or each for each in own))
    if exists(path) and not folder.checkpoints:
        raise UsageError(f'{given} is a checkpoint; give the directory that contains it')
    return folder


def usable_folder(settings: TrainSettings) -> Folder:
    """Returns the train_dir's Folder; raises a UsageError if the run may not use it."""
    folder = look(settings.run.train_dir)
    if problem := takeover.refusal(folder, settings):
        raise UsageError(problem)
    return folder


def find_images(settings: TrainSettings, folder: Folder) -> Found:
    """Returns the images. A run that resumes with the same data set keeps its original images."""
    record = folder.record if folder.checkpoints and not settings.run.restart else None
    is_same = record and record.settings.data.dataset == settings.data.dataset
    return datasets.find(settings.data, record.images_folder if record and is_same else None)


@contextlib.contextmanager
def _offering_shapes(settings: TrainSettings, folder: Folder) -> Iterator[None]:
    """Context that suggests `shapes` after a failed download, unless the start uses a run or a model."""
    try:
        yield
    except DownloadError as error:
        if settings.run.warm_start or folder.checkpoints:
            raise
        raise UsageError(f'{error}, or use --dataset=shapes --train_dir=/tmp/shapes, '
                         'which needs no network') from error
