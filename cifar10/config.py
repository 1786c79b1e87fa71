"""The settings of a training run and of an evaluation: plain, frozen, checked when they are made.

This is the one table of settings: the command line, its help and docs/flags.md follow it. It must not import
TensorFlow, so that `--help` and a mistyped flag answer at once.
"""
import dataclasses
import math
import os
import re
from collections.abc import Collection
from typing import Any

from cifar10.directories import DATA_DIR, EVAL_DIR, TRAIN_DIR
from cifar10.errors import UsageError
from cifar10.presets import ONLY_WITH, PRESETS, parse_sizes, parse_widths
from cifar10.registry import AUGMENTATIONS, AUTO, DATASETS, NETWORKS, OPTIMIZERS, PRECISIONS, SCHEDULES, UPDATE_MODES

TEST_FRACTION = 0.1
JOBS = ('worker', 'ps')
TOWER_DEVICES = ('auto', 'gpu', 'cpu')
EVAL_DATA = ('test', 'train_eval')
_STEPS = re.compile(r'[1-9]\d{0,8}:[1-9]\d{0,8}')
_PATTERNS = ('train_dir', 'checkpoint_dir')
_OF_TENSORFLOW = ('train_dir', 'data_dir', 'dataset', 'checkpoint_dir', 'eval_dir', 'export_dir')  # paths that it takes


def setting(default: Any, group: str | None, help: str, least: int | None = None,
            choices: Collection[str] | None = None) -> Any:
    """A field of a config; `group` and `help` are for the command line, `least` is the lowest value."""
    return dataclasses.field(default=default, metadata=dict(group=group, help=help, least=least, choices=choices))


def forms(choices: Collection[str]) -> Collection[str]:
    """Returns what a setting with choices takes, as a user would write it."""
    return getattr(choices, 'forms', choices)


class Config:
    """Checks the fields of a frozen dataclass against their types, lowest values and choices."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))
        for name, registry in (('dataset', DATASETS), ('network', NETWORKS)):
            value = getattr(self, name)
            if value and registry.is_own(value):  # the user's, to be found from any working directory
                object.__setattr__(self, name, os.path.abspath(value))
        for name in _OF_TENSORFLOW:
            path = getattr(self, name, None) or ''
            _check_encoding(name, os.path.abspath(path) if name == 'data_dir' and path else path)


def _check_encoding(name, path):
    """Raises a UsageError if a path is not UTF-8; that of data is absolute, as the run stores it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(f'--{name}={path} is not a name in UTF-8, as TensorFlow needs it; rename the directory, or '
                         'use another') from None


def _check(field, value):
    if value is None and field.default is None:
        return
    if type(value) is not field.type and not (field.type is float and type(value) is int):
        kind = {int: 'a whole number', float: 'a number', bool: 'true or false', str: 'a text',
                tuple: 'a tuple'}[field.type]
        raise UsageError(f'--{field.name}={value!r} is not {kind}')
    choices, least = field.metadata['choices'], field.metadata['least']
    if choices and value not in choices:
        hint = f' (did you mean {value}/?)' if field.name == 'dataset' and os.path.isdir(value) else ''
        raise UsageError(f"--{field.name}={value} is unknown{hint}; choose from: {', '.join(forms(choices))}")
    if least is not None and value < least:
        raise UsageError(f'--{field.name}={value} is too small; the least is {least}')
    if field.type is float and not (0 <= value < math.inf):
        raise UsageError(f'--{field.name}={value} is not a number from 0 upwards')
    if field.type is int and value >= 2 ** 31:
        raise UsageError(f'--{field.name}={value} is too large; the most is {2 ** 31 - 1}')
    if field.type is str and not value:
        raise UsageError(f'--{field.name} is empty; give it a value or leave it out')
    if field.name in _PATTERNS and set(value) & set('*?[]\\'):
        raise UsageError(f'--{field.name}={value} holds one of * ? [ ] \\, which TensorFlow takes for a pattern of '
                         'names; use another directory')


@dataclasses.dataclass(frozen=True)
class TrainConfig(Config):
    """A training run. Every field is a flag of multi_gpu_train.py of the same name.

    A setting of the recipe that is left out is the preset's. What depends on the run in train_dir or on the hardware
    (`num_towers`, `batch_size`, the precision `auto`) is left for `preparation.plan`.
    """
    train_dir: str = setting(TRAIN_DIR, 'Run',
                             'directory for checkpoints and TensorBoard files; a run found there is resumed')
    max_steps: int = setting(None, 'Run', 'total number of steps, including those before a resume (default: the '
                             "preset's)", least=1)
    epochs: float = setting(None, 'Run', "length of the run in passes over the data, instead of --max_steps (default: "
                            "the preset's)")
    seed: int = setting(0, 'Run', 'seed for initialisation, shuffling and augmentation', least=0)
    check: bool = setting(False, 'Run', 'report what a run would do, or what prevents it, and stop')
    restart: bool = setting(False, 'Run', "delete this program's files in train_dir and start a new run")
    data_dir: str = setting(DATA_DIR, 'Data', 'directory of the data set, created if need be')
    dataset: str = setting('cifar10', 'Data', 'data set; CIFAR is downloaded if need be, shapes is built in, FOLDER/ '
                         'has images of your own', choices=DATASETS)
    test_fraction: float = setting(TEST_FRACTION, 'Data', 'fraction of your own images to hold out for testing, if '
                                   'FOLDER/ has no train/ and test/')
    preset: str = setting('classic', 'Recipe', 'the settings of a whole recipe; each of those below changes one',
                          choices=PRESETS)
    network: str = setting(None, 'Recipe', 'the network; FILE.py:FUNCTION is one of your own', choices=NETWORKS)
    widths: str = setting(None, 'Recipe', 'channels of each group of layers of the fast network, as 64,128,128')
    optimizer: str = setting(None, 'Recipe', 'how gradients change the variables', choices=OPTIMIZERS)
    learning_rate: float = setting(None, 'Recipe', 'learning rate at the start')
    auxiliary_learning_rate: float = setting(None, 'Recipe', "muon's learning rate for what is not a filter")
    schedule: str = setting(None, 'Recipe', 'how the learning rate falls', choices=SCHEDULES)
    augmentation: str = setting(None, 'Recipe', 'how training images are varied', choices=AUGMENTATIONS)
    sizes: str = setting(None, 'Recipe', 'image sizes of the shift augmentation and the part of the run for each, as '
                         '20:0.5,28')
    label_smoothing: float = setting(None, 'Recipe', 'probability that is spread over all classes')
    moving_averages: bool = setting(None, 'Recipe', 'keep moving averages of the variables, for evaluation')
    num_gpus: int = setting(1, 'Towers', 'number of GPUs, or of CPU devices where there are none', least=1)
    gpus_per_tower: int = setting(1, 'Towers', "GPUs of one tower; with 2, the network's parts are on different ones",
                                  least=1)
    num_towers: int = setting(None, 'Towers', "number of towers (default: the run's, else one on each device)", least=1)
    batch_size: int = setting(None, 'Towers', 'examples of one tower in one step '
                              "(default: the run's, else the preset's)", least=1)
    tower_device: str = setting('auto', 'Towers', 'devices of the towers; auto: GPUs, or the CPU where there are none',
                                choices=TOWER_DEVICES)
    variable_update: str = setting('parameter_server', 'Towers',
                                   "update mode: how the towers' gradients update the variables",
                                   choices=UPDATE_MODES)
    precision: str = setting(None, 'Towers', 'type that the towers compute in; variables are always fp32; auto: '
                             "the run's, else bf16 where the hardware has it (default: the preset's)",
                             choices=(*PRECISIONS, AUTO))
    use_fp16: bool = setting(False, 'Towers', "the tutorial's name for --precision=fp16")
    deterministic: bool = setting(False, 'Towers', 'deterministic operations for GPUs, at some cost in speed')
    xla: bool = setting(False, 'Towers', 'compile the towers with XLA; GPUs only')
    job_name: str = setting(None, 'Cluster', "job of this process; worker 0 is the chief", choices=JOBS)
    task_index: int = setting(0, 'Cluster', 'number of this process within its job', least=0)
    worker_hosts: str = setting(None, 'Cluster', 'host:port of every worker, comma-separated')
    ps_hosts: str = setting(None, 'Cluster',
                            'host:port of the processes that hold the variables; default: the chief holds them')
    cluster_timeout_secs: int = setting(60, 'Cluster', 'seconds that a lost process may take to come back', least=1)
    log_device_placement: bool = setting(False, 'Reports', 'print the device of every operation')
    log_frequency: int = setting(10, 'Reports', 'steps between two lines', least=1)
    summary_steps: int = setting(100, 'Reports', 'steps between two summaries for TensorBoard; 0: none', least=0)
    eval_steps: int = setting(0, 'Reports', 'steps between two evaluations on the test images, and one at the '
                              'end; 0: none', least=0)
    save_steps: int = setting(1000, 'Reports', 'steps between two checkpoints', least=1)
    max_to_keep: int = setting(5, 'Reports', 'number of newest checkpoints to keep; 0: all', least=0)
    profile_steps: str = setting(None, 'Reports', 'FROM:TO, steps to trace into a file for Chrome or Perfetto')

    def __post_init__(self):
        super().__post_init__()
        self._complete_recipe()
        if not 0 < self.test_fraction < 1:
            raise UsageError(f'--test_fraction={self.test_fraction:g} leaves no pictures to train on or none to test; '
                             'give one between 0 and 1')
        if self.num_gpus % self.gpus_per_tower:
            raise UsageError(f'--num_gpus={self.num_gpus} cannot be divided into towers of --gpus_per_tower='
                             f'{self.gpus_per_tower}; use a multiple of it')
        if self.use_fp16:
            if self.precision == 'bf16':
                raise UsageError('--use_fp16 contradicts --precision=bf16; leave one of them out')
            object.__setattr__(self, 'precision', 'fp16')
        if self.deterministic and self.variable_update == 'async':
            raise UsageError('--deterministic is incompatible with --variable_update=async, whose towers update in the '
                             'order in which they happen to finish; use another update mode')
        if self.profile_steps is not None and not _STEPS.fullmatch(self.profile_steps):
            raise UsageError(f'--profile_steps={self.profile_steps} is not of the form FROM:TO, as 100:103')
        if self.traced[0] > self.traced[1]:
            raise UsageError(f'--profile_steps={self.profile_steps} ends before it begins')

    def _complete_recipe(self):
        """Sets what the command line left out to the preset's, and checks what belongs together."""
        if self.max_steps is not None and self.epochs is not None:
            raise UsageError(f'--max_steps={self.max_steps} and --epochs={self.epochs:g} both say when the run ends; '
                             'leave one of them out')
        given = {name for name in PRESETS[self.preset] if getattr(self, name) is not None}
        kept = given | {'batch_size'} | ({'max_steps', 'epochs'} if given & {'max_steps', 'epochs'} else set())
        for name, value in PRESETS[self.preset].items():
            if name not in kept:
                object.__setattr__(self, name, value)
        for name, (owner, only) in ONLY_WITH.items():
            if getattr(self, owner) != only:
                if name in given:
                    raise UsageError(f'--{name} is for --{owner}={only}, but this run has --{owner}='
                                     f'{getattr(self, owner)}; leave it out')
                object.__setattr__(self, name, None)
        if self.widths:
            parse_widths(self.widths)
        needs_end = [f'--sizes={self.sizes}'] if self.sizes and len(parse_sizes(self.sizes)) > 1 else []
        needs_end += ['--schedule=linear'] if self.schedule == 'linear' else []
        if needs_end and self.epochs is None:
            raise UsageError(f'{needs_end[0]} follows the length of the run, so it needs --epochs in place of '
                             f'--max_steps={self.max_steps}')
        if self.label_smoothing >= 1:
            raise UsageError(f'--label_smoothing={self.label_smoothing:g} leaves nothing for the label itself; give a '
                             'number from 0 up to but below 1')
        if self.epochs == 0:
            raise UsageError('--epochs=0 is no training; give a number above 0')

    @property
    def traced(self) -> tuple[int, int]:
        """The first and the last step to be traced; (0, 0) for none."""
        return tuple(map(int, (self.profile_steps or '0:0').split(':')))


@dataclasses.dataclass(frozen=True)
class EvalConfig(Config):
    """An evaluation. Every field is a flag of cifar10_eval.py of the same name."""
    checkpoint_dir: str = setting(TRAIN_DIR, 'Checkpoints', 'train_dir of the run to evaluate')
    eval_dir: str = setting(EVAL_DIR, 'Checkpoints', 'directory for TensorBoard files, metrics and the best '
                            'checkpoint')
    run_once: bool = setting(False, 'Checkpoints', 'evaluate the newest checkpoint and exit')
    keep_best: bool = setting(True, 'Checkpoints', 'keep a copy of the best checkpoint in eval_dir/best')
    per_class: bool = setting(False, 'Checkpoints', 'print precision and recall of each class and the confusion matrix')
    eval_interval_secs: int = setting(300, 'Checkpoints', 'seconds between two checks for a new checkpoint', least=1)
    use_ema: bool = setting(None, 'Checkpoints', 'evaluate the moving averages of the variables (default: if the run '
                            'has them)')
    test_time_averaging: bool = setting(None, 'Checkpoints', "also average the predictions of six views of each image "
                                        "(default: if the run has the shift augmentation)")
    image: tuple = setting(None, 'Use', 'image files to classify: --image A B, or --image=A --image=B')
    json: bool = setting(False, 'Use', 'print what --image finds as one JSON object per line')
    export_dir: str = setting(None, 'Use', 'write a SavedModel to this directory, which must be new or empty')
    data_dir: str = setting(None, 'Data', f"directory of the data set (default: the run's, else {DATA_DIR})")
    dataset: str = setting(None, 'Data', "data set, or the new place of the run's own images (default: the "
                           "run's, else cifar10)", choices=DATASETS)
    network: str = setting(None, 'Checkpoints', "where the run's own network is now, if it was moved", choices=NETWORKS)
    eval_data: str = setting('test', 'Data', 'test images, or training images without augmentation', choices=EVAL_DATA)
    num_examples: int = setting(None, 'Data', 'number of images (default: all)', least=1)
    batch_size: int = setting(128, 'Device', 'images in a batch; the result does not depend on it', least=1)
    tower_device: str = setting('auto', 'Device', 'device; cpu leaves the GPUs to a trainer', choices=TOWER_DEVICES)

    def __post_init__(self):
        super().__post_init__()
        if self.image and self.export_dir:
            raise UsageError('--image and --export_dir cannot be combined; leave one of them out')
        if self.json and not self.image:
            raise UsageError('--json requires --image; add --image or leave --json out')
