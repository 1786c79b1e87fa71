"""Defines the settings of an evaluation. Each is a flag of cifar10_eval.py with the same name."""
import dataclasses
import os
from typing import Any

from cifar10.base.directories import DATA_DIR, EVAL_DIR, EVALUATIONS, TRAIN_DIR
from cifar10.base.errors import UsageError
from cifar10.base.registry import DATASETS, NETWORKS
from cifar10.settings.definition import Group, checked, setting
from cifar10.settings.training import TOWER_DEVICES

EVAL_DATA = ('test', 'train_eval')


@dataclasses.dataclass(frozen=True)
class _Checkpoints(Group):
    """The checkpoints to evaluate, and the output."""
    TITLE = 'Checkpoints'
    train_dir: str = setting(
        None, 'directory of the run to evaluate; results are written to its subdirectory eval '
        f'(default: {TRAIN_DIR}, with the results in {EVAL_DIR})', is_path=True)
    checkpoint_dir: str = setting(
        TRAIN_DIR, "the tutorial's name for --train_dir; results are written to --eval_dir", is_path=True)
    checkpoint: str = setting(
        None, 'checkpoint to use instead of the newest one: its name in train_dir, or best; or the path of its prefix',
        is_path=True)
    eval_dir: str = setting(
        EVAL_DIR, 'directory for TensorBoard files and metrics; with --train_dir, its subdirectory eval', is_path=True)
    run_once: bool = setting(False, 'evaluate the newest checkpoint and exit')
    per_class: bool = setting(False, 'print precision and recall of each class and the confusion matrix')
    eval_interval_secs: int = setting(300, 'seconds between two checks for a new checkpoint', minimum=1)
    use_ema: bool = setting(
        None, 'evaluate the moving averages of the variables (default: if the run has them)')
    test_time_averaging: bool = setting(
        None, 'also average the predictions of six views of each image (default: if the run has the shift '
        'augmentation)')
    network: str = setting(
        None, "new location of the run's own network, if its file was moved (default: the run's)", choices=NETWORKS)


@dataclasses.dataclass(frozen=True)
class _Use(Group):
    """Other uses of a trained model: classifying images, exporting it."""
    TITLE = 'Use'
    image: tuple = setting(
        None, 'images to classify: files, and folders with their subfolders')
    csv: str = setting(
        None, 'new file for a table of the class and all probabilities of each --image, instead of lines',
        is_path=True)
    json: bool = setting(False, 'print each evaluation, or the classes of each --image, as a JSON object on one line')
    export_dir: str = setting(
        None, 'write a SavedModel to this new or empty directory', is_path=True)


@dataclasses.dataclass(frozen=True)
class _Data(Group):
    """The images."""
    TITLE = 'Data'
    data_dir: str = setting(
        None, f"directory of the data set (default: the run's, else {DATA_DIR})", is_path=True)
    dataset: str = setting(
        None, "data set to score the model on (default: the run's, else cifar10), or new location of the run's images",
        choices=DATASETS)
    eval_data: str = setting(
        'test', 'test, or train_eval: the training images without augmentation, with a list of the largest losses',
        choices=EVAL_DATA)
    num_examples: int = setting(None, 'number of images (default: all)', minimum=1)


@dataclasses.dataclass(frozen=True)
class _Device(Group):
    """The device of the network."""
    TITLE = 'Device'
    batch_size: int = setting(
        None, 'images in a batch; the result does not depend on it (default: 128, but at most 2 million pixels)',
        minimum=1)
    tower_device: str = setting('auto', 'device of the network; cpu leaves the GPUs to training', choices=TOWER_DEVICES)


GROUPS = (_Checkpoints, _Use, _Data, _Device)


@dataclasses.dataclass(frozen=True)
class EvalSettings(_Device, _Data, _Use, _Checkpoints):
    """All settings of an evaluation; `eval_settings` makes them.

    The groups are bases in reverse order: a dataclass takes the fields of its last base first.
    """


def eval_settings(**given: Any) -> EvalSettings:
    """Returns the settings of an evaluation. Missing settings have their defaults.

    Raises a UsageError if a value is not valid, or if settings contradict each other.
    """
    values = checked(GROUPS, given)
    is_name = os.sep not in (checkpoint := values.get('checkpoint') or '')
    directories = {name: values[name] for name in ('checkpoint_dir', 'train_dir', 'checkpoint')
                   if values.get(name) and not (is_name and name == 'checkpoint')}
    if len(directories) > 1:
        raise UsageError(f"{' and '.join(f'--{name}={path}' for name, path in directories.items())} each "
                         'select a model; give one of them')
    settings = EvalSettings(**values)
    if settings.train_dir:
        eval_dir = values.get('eval_dir') or os.path.join(settings.train_dir, EVALUATIONS)
        settings = dataclasses.replace(settings, checkpoint_dir=settings.train_dir, eval_dir=eval_dir)
    if settings.export_dir and (settings.image or settings.json):
        raise UsageError('--export_dir only exports the model; leave it out, or leave out --image and --json')
    if settings.csv and settings.json:
        raise UsageError(f'--csv={settings.csv} replaces lines, and so does --json; leave one of them out')
    if checkpoint:
        path = os.path.join(settings.checkpoint_dir, checkpoint) if is_name else checkpoint
        settings = dataclasses.replace(settings, checkpoint=path, checkpoint_dir=os.path.dirname(path), run_once=True)
    return settings
