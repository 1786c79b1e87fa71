"""The settings of an evaluation. Every setting is a flag of cifar10_eval.py of the same name."""
import dataclasses
from typing import Any

from cifar10.directories import DATA_DIR, EVAL_DIR, TRAIN_DIR
from cifar10.errors import UsageError
from cifar10.registry import DATASETS, NETWORKS
from cifar10.settings.definition import checked, no_pattern, setting, utf8, utf8_from_root
from cifar10.settings.training import TOWER_DEVICES

EVAL_DATA = ('test', 'train_eval')


@dataclasses.dataclass(frozen=True)
class _Checkpoints:
    TITLE = 'Checkpoints'
    checkpoint_dir: str = setting(TRAIN_DIR, 'train_dir of the run to evaluate', checks=[no_pattern, utf8])
    eval_dir: str = setting(
        EVAL_DIR, 'directory for TensorBoard files, metrics and the best checkpoint', checks=[utf8])
    run_once: bool = setting(False, 'evaluate the newest checkpoint and exit')
    keep_best: bool = setting(True, 'keep a copy of the best checkpoint in eval_dir/best')
    per_class: bool = setting(False, 'print precision and recall of each class and the confusion matrix')
    eval_interval_secs: int = setting(300, 'seconds between two checks for a new checkpoint', least=1)
    use_ema: bool = setting(
        None, 'evaluate the moving averages of the variables (default: if the run has them)')
    test_time_averaging: bool = setting(
        None, 'also average the predictions of six views of each image (default: if the run has the shift '
        'augmentation)')
    network: str = setting(None, "where the run's own network is now, if it was moved", choices=NETWORKS)


@dataclasses.dataclass(frozen=True)
class _Use:
    TITLE = 'Use'
    image: tuple = setting(None, 'image files to classify: --image A B, or --image=A --image=B')
    json: bool = setting(False, 'print what --image finds as one JSON object per line')
    export_dir: str = setting(
        None, 'write a SavedModel to this directory, which must be new or empty', checks=[utf8])


@dataclasses.dataclass(frozen=True)
class _Data:
    TITLE = 'Data'
    data_dir: str = setting(
        None, f"directory of the data set (default: the run's, else {DATA_DIR})", checks=[utf8_from_root])
    dataset: str = setting(
        None, "data set, or the new place of the run's own images (default: the run's, else cifar10)",
        choices=DATASETS, checks=[utf8])
    eval_data: str = setting('test', 'test images, or training images without augmentation', choices=EVAL_DATA)
    num_examples: int = setting(None, 'number of images (default: all)', least=1)


@dataclasses.dataclass(frozen=True)
class _Device:
    TITLE = 'Device'
    batch_size: int = setting(128, 'images in a batch; the result does not depend on it', least=1)
    tower_device: str = setting('auto', 'device; cpu leaves the GPUs to a trainer', choices=TOWER_DEVICES)


GROUPS = (_Checkpoints, _Use, _Data, _Device)


@dataclasses.dataclass(frozen=True)
class EvalSettings(_Device, _Data, _Use, _Checkpoints):
    """All settings of an evaluation, as `eval_settings` makes them."""


def eval_settings(**given: Any) -> EvalSettings:
    """Returns the settings of an evaluation from those that are given, by their names; the others have their defaults.

    Raises:
      UsageError: a value that its setting cannot have, or settings that do not fit together.
    """
    settings = EvalSettings(**checked(GROUPS, given))
    if settings.image and settings.export_dir:
        raise UsageError('--image and --export_dir cannot be combined; leave one of them out')
    if settings.json and not settings.image:
        raise UsageError('--json requires --image; add --image or leave --json out')
    return settings
