"""Defines the settings of a training run, in groups. Each is a flag of multi_gpu_train.py with the same name.

Only this module defines them. A preset is a table of values for a recipe's settings.
"""
import dataclasses
import re
import shlex
from collections.abc import Mapping
from typing import Any

from cifar10.base.directories import DATA_DIR, TRAIN_DIR
from cifar10.base.errors import UsageError, shortened
from cifar10.base.registry import (
    AUGMENTATIONS,
    AUTO,
    DATASETS,
    LOSSES,
    NETWORKS,
    OPTIMIZERS,
    PRECISIONS,
    SCHEDULES,
    TO_THE_END,
    UPDATE_MODES,
)
from cifar10.settings.definition import OF_RUN, Group, Kind, checked, fields, setting
from cifar10.settings.presets import (
    CLASSIC,
    LARGEST_IMAGE,
    OF_LARGE_IMAGES,
    OF_SHAPES,
    ON_SHAPES,
    PRESETS,
    SMALL_IMAGE,
    UNWEIGHTED,
    parse_class_weights,
    parse_sizes,
    scaled_sizes,
)

TOWER_DEVICES = ('auto', 'gpu', 'cpu')
JOBS = ('worker', 'ps')
# Plans over the length of a run, for messages that name the length.
OVER_WHOSE_LENGTH = {
    'sizes': 'over which its image sizes are planned', 'schedule': 'at whose end the learning rate reaches 0'}


# Checks of single values.

def _unless(is_valid, why):
    """Returns a check that raises a UsageError for an invalid value; `why` follows the value in the message."""
    def check(name, value):
        if not is_valid(value):
            raise UsageError(f"--{name}={f'{value:g}' if isinstance(value, float) else value} {why}")
    return check


_between_0_and_1 = _unless(lambda value: 0 < value < 1, (
    'leaves no images for training or none for testing; give a number between 0 and 1'))
_at_most_largest = _unless(lambda value: value <= LARGEST_IMAGE, f'is too large; the maximum is {LARGEST_IMAGE}')
_below_1 = _unless(lambda value: value < 1, 'leaves no probability for the label itself; give a number below 1')
_above_0 = _unless(bool, 'trains nothing; give a number above 0')
_countable = _unless(lambda value: value <= 1e9, 'is too large; the maximum is 1e9')  # int64 counts its images


def _regular_expression(name, value):
    try:
        re.compile(value)
    except (re.error, RecursionError) as error:
        raise UsageError(f'--{name}={shortened(value)} is not a regular expression ({error}); escape special '
                         'characters with \\') from None


@dataclasses.dataclass(frozen=True)
class RunSettings(Group):
    """The directory, the length and the start of a run."""
    TITLE = 'Run'
    train_dir: str = setting(
        TRAIN_DIR, 'directory of the run; an existing run there is resumed', is_path=True, kind=Kind.START)
    max_steps: int = setting(
        None, "total number of steps, including steps before a resume (default: the preset's)", minimum=1)
    epochs: float = setting(
        None, "length of the run in passes over the data, instead of --max_steps (default: the preset's)",
        checks=[_above_0, _countable])
    patience: int = setting(
        0, 'number of evaluations in a row without an improvement that end the run; 0: never', minimum=0)
    warm_start: str = setting(
        None, 'checkpoint, directory with checkpoints, or FILE.npz to initialise the variables of a new run',
        is_path=True, kind=Kind.START)
    seed: int = setting(
        0, 'seed for initialisation, shuffling and augmentation', minimum=0, kind=Kind.FIXED)
    stuck_secs: int = setting(
        600, 'seconds without progress after which training, --check or --explain reports its activity and ends; '
        '0: never', minimum=0, kind=Kind.FREE)
    check: bool = setting(False, 'start a dry run, report the first problem or ready, and exit', kind=Kind.START)
    explain: bool = setting(
        False, 'measure the parts of a step for 20 seconds or more, and exit', kind=Kind.START)
    restart: bool = setting(False, 'rename an existing train_dir, and start a new run', kind=Kind.START)


@dataclasses.dataclass(frozen=True)
class DataSettings(Group):
    """The images."""
    TITLE = 'Data'
    data_dir: str = setting(
        DATA_DIR, 'directory of the data set, created if necessary', is_path=True,
        kind=Kind.MACHINE)
    dataset: str = setting(
        'cifar10', 'data set; CIFAR is downloaded, FOLDER/ or FILE.npz has your own images, FILE.py:FUNCTION returns '
        'your own batches',
        choices=DATASETS, kind=Kind.FIXED)
    test_fraction: float = setting(
        0.1, 'fraction of your own images to hold out for testing, if there are no test images',
        kind=Kind.FIXED, checks=[_between_0_and_1])
    image_size: int = setting(
        32, 'height and width of the images before augmentation, 16 to 512 pixels', minimum=16,
        kind=Kind.FIXED, checks=[_at_most_largest])


@dataclasses.dataclass(frozen=True)
class RecipeSettings(Group):
    """The network, the optimizer and the rest of a recipe. The preset supplies missing settings."""
    TITLE = 'Recipe'
    preset: str = setting(
        'classic', 'complete recipe; other flags override its settings', choices=PRESETS)
    network: str = setting(
        None, 'network; FILE.py:FUNCTION is your own', choices=NETWORKS, kind=Kind.FIXED)
    optimizer: str = setting(
        None, 'optimizer; FILE.py:FUNCTION is your own',
        choices=OPTIMIZERS, kind=Kind.FIXED)
    learning_rate: float = setting(
        None, "initial learning rate (default: the run's, else the preset's or the optimizer's)")
    weight_decay: float = setting(
        0.01, "weight decay of adamw, for variables of two or more dimensions",
        only_with=('optimizer', 'adamw'))
    clip_norm: float = setting(
        None, "largest global norm of the gradients; larger gradients are scaled down; 0: no clipping")
    schedule: str = setting(None, 'learning rate schedule', choices=SCHEDULES, kind=Kind.FIXED)
    warmup_epochs: float = setting(
        None, 'epochs in which the learning rate rises from 0, before the schedule begins',
        kind=Kind.FIXED, checks=[_countable])
    augmentation: str = setting(
        None, 'augmentation of the training images; NAME,FILE.py:FUNCTION adds your own',
        choices=AUGMENTATIONS, kind=Kind.FIXED)
    sizes: str = setting(
        None, 'image sizes of the shift augmentation, each with its fraction of the run, such as 20:0.5,28',
        kind=Kind.FIXED, only_with=('augmentation', 'shift'), checks=[lambda name, value: parse_sizes(value)])
    loss: str = setting(
        None, 'loss of an example; FILE.py:FUNCTION is your own', choices=LOSSES, kind=Kind.FIXED)
    label_smoothing: float = setting(
        None, 'probability that is spread evenly over all classes',
        only_with=('loss', 'cross_entropy'), checks=[_below_1])
    class_weights: str = setting(
        UNWEIGHTED, 'weight of each class in the loss, such as cat=2,dog=1; balanced: equal weight for all classes',
        checks=[lambda name, value: parse_class_weights(value)])
    moving_averages: bool = setting(
        None, 'keep moving averages of the variables, for evaluation', kind=Kind.FIXED)
    freeze: str = setting(
        None, 'regular expression; variables with matching names are not trained', kind=Kind.FIXED,
        checks=[_regular_expression])

    @property
    def planned(self) -> str | None:
        """The setting that plans over the whole run, so that a new length makes a different run; or None."""
        if self.sizes and len(parse_sizes(self.sizes)) > 1:
            return 'sizes'
        return 'schedule' if self.schedule in TO_THE_END else None


@dataclasses.dataclass(frozen=True)
class TowerSettings(Group):
    """The towers, their devices, and how they update the variables."""
    TITLE = 'Towers'
    num_gpus: int = setting(
        1, 'number of GPUs, or of CPU devices on a machine without GPUs', minimum=1, kind=Kind.MACHINE)
    gpus_per_tower: int = setting(
        1, 'number of GPUs of one tower; each computes a part of the network', minimum=1, kind=Kind.MACHINE)
    num_towers: int = setting(
        None, "number of towers (default: the run's, else one per device)", minimum=1)
    batch_size: int = setting(
        None, "examples of one tower in one step (default: the run's, else the preset's)", minimum=1)
    tower_device: str = setting(
        'auto', 'devices of the towers; auto: GPUs, or the CPU on a machine without GPUs', choices=TOWER_DEVICES,
        kind=Kind.MACHINE)
    variable_update: str = setting(
        'parameter_server', "update mode: how the towers' gradients update the variables", choices=UPDATE_MODES)
    local_steps: int = setting(
        8, 'largest number of steps between two averages of the copies', minimum=1,
        only_with=('variable_update', 'local'))
    precision: str = setting(
        None, "data type of the towers; variables are always fp32; auto: the run's, else bf16 if the hardware supports "
        "it (default: the preset's)", choices=(*PRECISIONS, AUTO))
    use_fp16: bool = setting(
        False, "the tutorial's name for --precision=fp16; if false is given, for --precision=fp32", kind=Kind.START)
    deterministic: bool = setting(False, 'deterministic operations on GPUs, which are slower')
    xla: bool = setting(False, 'compile the towers with XLA, on GPUs only', kind=Kind.MACHINE)


@dataclasses.dataclass(frozen=True)
class ClusterSettings(Group):
    """The processes of a cluster, and this process's role."""
    TITLE = 'Cluster'
    job_name: str = setting(None, 'job of this process; worker 0 is the chief', choices=JOBS, kind=Kind.START)
    task_index: int = setting(0, 'number of this process within its job', minimum=0, kind=Kind.START)
    worker_hosts: str = setting(None, 'host:port of every worker, comma-separated', kind=Kind.START)
    ps_hosts: str = setting(
        None, 'host:port of the processes that hold the variables (default: the chief holds them)', kind=Kind.START)
    cluster_timeout_secs: int = setting(
        60, 'seconds to wait for a lost process', minimum=1, kind=Kind.START)
    port_filter: bool = setting(
        True, "drop packets from outside the cluster; anyone who can reach this process's port can run code as you",
        kind=Kind.START)


@dataclasses.dataclass(frozen=True)
class ReportSettings(Group):
    """How often a run prints, summarises, evaluates and saves."""
    TITLE = 'Reports'
    log_device_placement: bool = setting(False, 'print the device of every operation', kind=Kind.START)
    log_frequency: int = setting(10, 'steps between two log lines', minimum=1, kind=Kind.FREE)
    summary_steps: int = setting(
        100, 'steps between two sets of histograms for TensorBoard; 0: none', minimum=0, kind=Kind.FREE)
    eval_steps: int = setting(
        0, 'steps between two evaluations on the test images; 0: none', minimum=0)
    save_steps: int = setting(1000, 'steps between two checkpoints', minimum=1)
    save_minutes: float = setting(
        10, 'longest time between two checkpoints, in minutes; 0: no limit', minimum=0, kind=Kind.FREE)
    max_to_keep: int = setting(5, 'number of newest checkpoints to keep; 0: all', minimum=0, kind=Kind.FREE)
    keep_best: bool = setting(
        False, 'keep the best checkpoint of --eval_steps', kind=Kind.FREE)


GROUPS = (RunSettings, DataSettings, RecipeSettings, TowerSettings, ClusterSettings, ReportSettings)


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """All settings of a training run; `train_settings` makes them.

    Settings that depend on the run in train_dir or on the hardware (`num_towers`, `batch_size`, the learning rate,
    the precision 'auto') may be undecided; `decisions.decided` decides them.

    Attributes:
      given: the given settings, by name; all other settings follow from them.
    """
    run: RunSettings
    data: DataSettings
    recipe: RecipeSettings
    towers: TowerSettings
    cluster: ClusterSettings
    reports: ReportSettings
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)

    def flat(self) -> dict[str, Any]:
        """Returns all settings by name."""
        groups = self.run, self.data, self.recipe, self.towers, self.cluster, self.reports
        return {name: value for group in groups for name, value in vars(group).items()}

    def replace(self, **values: Any) -> 'TrainSettings':
        """Returns the settings with some values replaced, including given ones; does not check the new values."""
        return _grouped({**self.flat(), **values},
                        {name: values.get(name, value) for name, value in self.given.items()})


def train_settings(**given: Any) -> TrainSettings:
    """Returns the settings of a training run; missing settings have the preset's values or their defaults.

    Raises a UsageError if a value is not valid, or if settings contradict each other.
    """
    values = {name: value for name, value in checked(GROUPS, given).items() if value is not None}
    if 'max_steps' in values and 'epochs' in values:
        raise UsageError(f"--max_steps={values['max_steps']} and --epochs={values['epochs']:g} both set the length "
                         'of the run; leave one of them out')
    if 'use_fp16' in values:
        named = 'fp16' if values['use_fp16'] else 'fp32'
        precision = values.setdefault('precision', named)
        if values['use_fp16'] and precision != named:
            raise UsageError(f'--use_fp16 contradicts --precision={precision}; leave one of them out')
    settings = _with_preset(values)
    _check_sizes(settings)
    _check_optimizer(settings.recipe)
    _check_length(settings, values)
    _check_towers(settings.towers)
    _check_explain(settings)
    _check_evaluations(settings)
    return settings


def hyperparameters(settings: TrainSettings) -> dict[str, Any]:
    """Returns settings that affect the result of a run: the main settings, and the given ones."""
    values = settings.flat()
    main = ('preset', 'network', 'num_towers', 'batch_size', 'learning_rate')
    excluded = {field.name for field in fields(ReportSettings)}
    names = [*main, *(name for name in _given(settings, Kind.FIXED, Kind.NOTED) if name not in (*main, *excluded))]
    return {name: values[name] for name in names if values[name] is not None}


def flags_of(settings: TrainSettings) -> list[str]:
    """Returns shell flags for a run's settings on a machine."""
    return as_flags(_given(settings, *OF_RUN, Kind.MACHINE))


def _given(settings, *kinds):
    return {field.name: settings.given[field.name] for field in fields(*GROUPS)
            if field.name in settings.given and field.metadata['kind'] in kinds}


def as_flags(values: Mapping[str, Any]) -> list[str]:
    """Returns settings as shell flags; omits settings that are None."""
    return [f"--{name}={shlex.quote(str(value).lower() if isinstance(value, bool) else str(value))}"
            for name, value in values.items() if value is not None]


def completed(stored: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> TrainSettings:
    """Returns the settings of a run from its recorded settings, unchecked.

    The tutorial recorded none: its recipe is `classic`.
    """
    values = {**CLASSIC, **stored}
    return _grouped({**values, **dict.fromkeys(meaningless(values))}, given or {})


def _grouped(values, given):
    """Returns the TrainSettings with these values; missing settings have their defaults. Ignores unknown names."""
    groups: list[Any] = []
    for group in GROUPS:
        names = [field.name for field in fields(group) if field.name in values]
        groups.append(group(**{name: values[name] for name in names}))
    return TrainSettings(*[*groups, given])


def _with_preset(given):
    """Returns the TrainSettings with the usual values for missing settings."""
    values: dict[str, Any] = {field.name: field.default for field in fields(*GROUPS)}
    values.update(PRESETS[given['preset']] if 'preset' in given else CLASSIC)
    values.update(batch_size=None, learning_rate=None)  # may differ in a resumed run
    if 'max_steps' in given or 'epochs' in given:  # either replaces the preset's length of the run
        values.update(max_steps=None, epochs=None)
    if given.get('eval_steps') == 0:  # the preset's compares evaluations
        values['keep_best'] = False
    size = given.get('image_size', values['image_size'])
    if size > SMALL_IMAGE and 'preset' not in given:
        values.update(OF_LARGE_IMAGES)
    if values['sizes']:
        values['sizes'] = scaled_sizes(values['sizes'], size)
    can_clip = given.get('variable_update') != 'mirrored'
    if can_clip and 'preset' not in given and ON_SHAPES.items() <= {**values, **given}.items():
        values.update(OF_SHAPES)
    values.update(given)
    without = meaningless(values)
    for name, (other, required) in without.items():
        if given.get(name):  # not 0, which asks for nothing
            raise UsageError(f'--{name} is for --{other}={required}, but this run has --{other}={values[other]}; leave '
                             f'it out, or add --{other}={required}')
    return _grouped({**values, **dict.fromkeys(without)}, given)


def meaningless(values: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Finds the settings that have no meaning because of another setting.

    Args:
      values: settings by their names; a missing one has its default.

    Returns:
      {name: (name of the other setting, the value that it would need)}.
    """
    values = {**{field.name: field.default for field in fields(*GROUPS)}, **values}
    values['augmentation'], _ = AUGMENTATIONS.divided(values['augmentation'] or '')
    only_with = {field.name: field.metadata['only_with'] for field in fields(*GROUPS) if field.metadata['only_with']}
    return {name: (other, required) for name, (other, required) in only_with.items() if values[other] != required}


def _check_sizes(settings):
    sizes = settings.recipe.sizes
    image_size = settings.data.image_size
    if sizes and (largest := max(size for _, size in parse_sizes(sizes))) > image_size:
        raise UsageError(f'--sizes={sizes} has images of {largest} pixels, more than --image_size={image_size}; use '
                         f'smaller --sizes, or --image_size={largest}')


def _check_optimizer(recipe):
    if OPTIMIZERS.is_own(recipe.optimizer) and recipe.learning_rate is None:
        raise UsageError(f'--optimizer={shortened(recipe.optimizer)} has no default learning rate; give '
                         '--learning_rate')


def _check_length(settings, given):
    """Raises a UsageError if the recipe depends on the run's length, which is in steps or too short.

    The message names one of the given settings, or else the preset.
    """
    recipe, epochs = settings.recipe, settings.run.epochs
    if epochs is not None and epochs <= recipe.warmup_epochs:
        warmup = f'--warmup_epochs={recipe.warmup_epochs:g}'
        if 'warmup_epochs' not in given:
            warmup += f' (set by --preset={recipe.preset})'
        raise UsageError(f'{warmup} must be less than --epochs={epochs:g}; reduce --warmup_epochs or increase '
                         '--epochs')
    if (name := recipe.planned) and epochs is None:
        what = {'sizes': 'image sizes', 'schedule': 'learning rate'}[name]
        cause = f'--{name}={getattr(recipe, name)}' if name in given else f'--preset={recipe.preset}'
        instead = f' instead of --max_steps={settings.run.max_steps}' if 'max_steps' in given else ''
        raise UsageError(f'{cause} plans the {what} over a number of epochs; give --epochs{instead}')


def _check_towers(towers):
    if towers.num_gpus % towers.gpus_per_tower:
        raise UsageError(f'--num_gpus={towers.num_gpus} cannot be divided into towers of --gpus_per_tower='
                         f'{towers.gpus_per_tower}; use --num_gpus='
                         f'{-(-towers.num_gpus // towers.gpus_per_tower) * towers.gpus_per_tower}')
    if towers.deterministic and towers.variable_update == 'async':
        raise UsageError('--deterministic is incompatible with --variable_update=async, because its updates have '
                         'no fixed order; use another update mode')


def _check_evaluations(settings):
    patience, towers, dataset = settings.run.patience, settings.towers, settings.data.dataset
    if settings.reports.eval_steps or not (settings.reports.keep_best or patience):
        return
    asked, without = f'--patience={patience}', '--patience=0'
    if settings.reports.keep_best:
        asked, without = '--keep_best', '--keep_best=false'
    batch_size = towers.batch_size or PRESETS[settings.recipe.preset]['batch_size']
    images = batch_size * (towers.num_towers or towers.num_gpus // towers.gpus_per_tower)
    steps = f'--eval_steps=N (an epoch has training images / {images} steps)'
    if not DATASETS.is_own(dataset):
        steps = f"--eval_steps={-(-DATASETS.load(dataset).counts['train'] // images)} (one epoch)"
    raise UsageError(f'{asked} needs evaluations during training; add {steps}, or use {without}')


def _check_explain(settings):
    if settings.run.explain and settings.towers.variable_update in ('async', 'mirrored'):
        raise UsageError(f'--explain is incompatible with --variable_update={settings.towers.variable_update}; use '
                         'another update mode')
