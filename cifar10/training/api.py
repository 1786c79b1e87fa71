"""Provides the two scripts' functions to Python: training, and the uses of a trained model.

    from cifar10 import train, evaluate, predict, export

Importing this module must not import TensorFlow.
"""
import collections
import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from cifar10.base import console, own_files, startup
from cifar10.base.activity import OF_FIRST_STEP, doing
from cifar10.base.directories import DATA_DIR
from cifar10.base.errors import RunError, UsageError, describe_os_error
from cifar10.base.installed import command
from cifar10.base.registry import DATASETS, UPDATE_MODES
from cifar10.base.signals import Termination
from cifar10.base.stuck import StuckWatch
from cifar10.cluster import membership
from cifar10.run import metrics
from cifar10.run.folder import look
from cifar10.settings.evaluation import eval_settings
from cifar10.settings.training import TrainSettings
from cifar10.training.resolved import resolve

if TYPE_CHECKING:
    from cifar10.evaluation.classification import Predictions
    from cifar10.evaluation.export import ExportResult
    from cifar10.evaluation.result import EvalResult

_OF_EVAL_SCRIPT = 'image', 'csv', 'json', 'export_dir'  # flags of cifar10_eval.py without keywords
_PATH = str, bytes, os.PathLike
_CONTENTS = bytes, bytearray, memoryview  # of a picture file


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """The result of `train`.

    Attributes:
      step: the last step of the run so far.
      checkpoint: prefix of that step's checkpoint.
      finished: whether the run has ended, and not only this start; False after a signal.
      figures: figures of the newest log line in metrics.jsonl, such as 'loss', 'accuracy' and 'images_per_sec'; empty
        before the first line.
      evaluation: figures of the newest evaluation by `eval_steps`, such as 'accuracy', 'mean_recall' and
        'cross_entropy'; empty without one.
      notes: the lines that matter for the result: warnings, and changes since the last start.
      ended_by: the setting that ended the run: 'max_steps', 'epochs' or 'patience'; None if it is not finished.
    """
    step: int
    checkpoint: str
    finished: bool
    figures: dict[str, Any] = dataclasses.field(repr=False)
    evaluation: dict[str, Any] = dataclasses.field(repr=False)
    notes: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    ended_by: str | None = dataclasses.field(default=None, repr=False)


def train(*, say: Callable[[str], Any] | None = None, on_record: Callable[[dict], Any] | None = None,
          termination: Termination | None = None, **settings: Any) -> TrainResult | None:
    """Trains until `max_steps`, `epochs` or `patience` end the run; resumes an existing run in `train_dir`.

    Args:
      say: function that gets each line that multi_gpu_train.py would print. `print` also shows a progress bar on a
        terminal. By default nothing is printed, and the result's notes become Python warnings.
      on_record: function that gets each new record of metrics.jsonl: a dict with its 'kind' ('start', 'train', 'eval'
        or 'checkpoint'), its 'step' and its figures.
      termination: handles SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 during this call: the first signal ends the run
        after a step, with a checkpoint. By default signals are not handled, and Ctrl-C raises KeyboardInterrupt; the
        same call then resumes from the newest checkpoint.
      settings: the flags of multi_gpu_train.py, by name. `dataset` may also be NumPy arrays, (images, labels) or
        ((images, labels), (test images, test labels)), which a file in `data_dir` keeps. If training makes no
        progress for `stuck_secs`, the whole process ends; 0 disables this limit.

    Returns:
      The TrainResult; None in a cluster's processes other than the chief.

    Raises:
      UsageError: a setting is unknown or wrong, or does not fit the run in `train_dir`; nothing was trained.
      RunError: the run failed.
    """
    _refuse(settings, ('check', 'explain'), 'train')
    given, lines = resolve(_with_file(settings))
    with termination or contextlib.nullcontext(), StuckWatch(given.run.stuck_secs), \
            doing('start', OF_FIRST_STEP), \
            _prepared(say, on_record, given.reports.log_device_placement) as output:
        console.say_all(lines)
        from cifar10.training import trainer
        cluster = cluster_of(given)
        ended = trainer.train(given, termination) if cluster is None else take_part(
            cluster, given, termination, trainer.train)
    if ended is None:
        return None
    checkpoint, step, ended_by = ended
    figures, evaluation = (_newest(given.run.train_dir, kind) for kind in (metrics.TRAIN, metrics.EVAL))
    return TrainResult(step, checkpoint, ended_by is not None, figures, evaluation, tuple(output.notes), ended_by)


def evaluate(*, say: Callable[[str], Any] | None = None, on_record: Callable[[dict], Any] | None = None,
             **settings: Any) -> 'EvalResult | None':
    """Evaluates the newest checkpoint of the run in `checkpoint_dir`.

    `run_once=False` then also waits for newer checkpoints and evaluates each, until an interrupt.

    Args:
      say: as for `train`, with the lines of cifar10_eval.py.
      on_record: function that gets the record of each evaluation, as in metrics.jsonl in `eval_dir`.
      settings: the flags of cifar10_eval.py, by name; `run_once` defaults to True. `dataset` may differ from the
        run's, and may be arrays as for `train`; their labels are numbers of the run's classes. The evaluation then uses
        the test images, or all images if there are none, and writes nothing to `eval_dir`.

    Returns:
      The result of the last evaluation; None after an interrupt before the first.

    Raises:
      UsageError: a setting is unknown or wrong, or does not fit the run, or the directory does not exist.
      RunError: there is no readable checkpoint.
    """
    _refuse(settings, _OF_EVAL_SCRIPT, 'eval')
    given = eval_settings(**{'run_once': True, **_with_file(settings)})
    last: collections.deque[EvalResult] = collections.deque(maxlen=1)
    with _prepared(say, on_record) as output:
        from cifar10.evaluation import of_checkpoints
        # An interrupt is the normal end of watching.
        with contextlib.nullcontext() if given.run_once else contextlib.suppress(KeyboardInterrupt):
            of_checkpoints.evaluate(given, last.append)
    return dataclasses.replace(last[0], notes=tuple(output.notes)) if last else None


def predict(images: Any = None, *, say: Callable[[str], Any] | None = None,
            **settings: Any) -> 'Predictions | dict[str, Any]':
    """Classifies images with the model of a run, as cifar10_eval.py --image does. Each call loads the model.

    Args:
      images: uint8 [n, height, width, 3], [n, height, width, 1] or [n, height, width]; or one or several paths of
        files, or of folders with pictures at any depth; or bytes, the contents of one or several files. For a run on
        your own data set function: a `tf.data.Dataset` of feature batches, or None for the function's data in mode
        'infer'.
      say: as for `train`, with the lines of cifar10_eval.py.
      settings: the flags of cifar10_eval.py that select the model, by name, such as `train_dir`.

    Returns:
      The Predictions; for a run on your own data set function, the arrays of the model's predictions, by name.

    Raises:
      UsageError: a setting is unknown or wrong, there is no run, the images have a different type or shape, or a
        folder has no picture. Unreadable files and NaN probabilities raise no error.
      RunError: there is no readable checkpoint.
    """
    _refuse(settings, _OF_EVAL_SCRIPT, 'eval')
    if images is None or hasattr(images, 'element_spec'):
        given = eval_settings(**settings)
        if images is not None:
            from cifar10.data.pipeline import copied
            images = copied(images)  # while the caller's graph is the current one
        with _prepared(say, None):
            from cifar10.evaluation import batches
            return batches.predict(given, images)
    if isinstance(images, (*_PATH, *_CONTENTS)):
        images = [images]
    if isinstance(images, Iterable) and getattr(images, 'ndim', 1) == 1:  # not images, but perhaps an array of paths
        images = list(images)
    is_list = isinstance(images, list)
    if is_list and all(isinstance(each, (str, os.PathLike)) for each in images):
        settings, images = dict(settings, image=tuple(map(os.fsdecode, images))), None
    elif is_list and all(isinstance(each, _CONTENTS) for each in images):
        images = [*map(bytes, images)]
    else:
        import numpy as np

        from cifar10.data import arrays
        try:
            images = np.asarray(images)
        except ValueError as error:
            raise UsageError('predict got images of several sizes; call it once for each size') from error
        arrays.check_images(images, 'predict got images')
    given = eval_settings(**settings)
    with _prepared(say, None) as output:
        from cifar10.evaluation import classification
        found = classification.predict(given, images)
        if found.errors:
            console.say('warning', f'{len(found.errors)} of {len(found.probabilities)} images could not be classified; '
                                   'the attribute errors has the reasons')
        return dataclasses.replace(found, notes=tuple(output.notes))


def export(export_dir: str | os.PathLike, *, say: Callable[[str], Any] | None = None,
           **settings: Any) -> 'ExportResult':
    """Writes the model of a run as a SavedModel, like cifar10_eval.py --export_dir.

    Args:
      export_dir: a new or empty directory.
      say: as for `train`, with the lines of cifar10_eval.py.
      settings: the flags of cifar10_eval.py that select the model, by name, such as `train_dir`.

    Raises:
      UsageError: a setting is unknown or wrong, there is no run, the directory is not empty, or the network does not
        support export.
      RunError: there is no readable checkpoint, or the disk is full.
    """
    _refuse(settings, _OF_EVAL_SCRIPT, 'eval')
    given = eval_settings(export_dir=export_dir, **settings)
    with _prepared(say, None) as output:
        from cifar10.evaluation import export as exporting
        return dataclasses.replace(exporting.export(given), notes=tuple(output.notes))


def _with_file(settings):
    """Returns settings with a file in place of a `dataset` of arrays."""
    given = settings.get('dataset')
    if given is None or isinstance(given, _PATH):
        return settings
    from cifar10.data import arrays  # with NumPy
    return dict(settings, dataset=arrays.saved(given, settings.get('data_dir') or DATA_DIR))


def _refuse(settings, names, program):
    for name in names:
        if settings.get(name) not in (None, False):
            raise UsageError(f'--{name} is for the command line only; use {command(program)} --{name}')


def _newest(train_dir, kind):
    record = metrics.last(train_dir, kind) or {}
    return {name: value for name, value in record.items() if name != 'kind'}


@contextlib.contextmanager
def _prepared(say, on_record, verbose=False) -> Iterator[console.Output]:
    """Context that starts TensorFlow and sends lines and records to the caller's functions."""
    with console.Output(say, on_record).used() as output:
        umask = os.umask(0o002)
        os.umask(umask | 0o002)  # as in a program
        try:
            with startup.tensorflow_started(verbose), own_files.executed_anew():
                yield output
        except BrokenPipeError:  # a closed standard output is not a failure of the run
            raise
        except OSError as error:
            raise RunError(describe_os_error(error)) from error
        finally:
            os.umask(umask)


def cluster_of(settings: TrainSettings) -> membership.Cluster | None:
    """Returns this process's cluster, or None; raises a UsageError if the update mode does not support clusters."""
    cluster = membership.resolve(settings.cluster)
    update = settings.towers.variable_update
    if cluster and UPDATE_MODES.load(update).uses_strategy:
        raise UsageError(f'--variable_update={update} supports one machine only; use parameter_server, replicated, '
                         'async or local')
    return cluster


def take_part(cluster: membership.Cluster, settings: TrainSettings, termination: Termination | None,
              train: Callable) -> Any:
    """Calls a training function as the chief of a cluster. The other tasks serve until it returns.

    Args:
      cluster: from `cluster_of`.
      termination: handles the signals that end the run; or None.
      train: function with the parameters of `trainer.train`.

    Returns:
      The result of `train`; None in the other tasks.
    """
    from cifar10.base import graphs
    from cifar10.cluster import member
    from cifar10.parallel import devices
    from cifar10.training.start import check_network, find_images, local_devices
    if settings.towers.deterministic:  # in every process: kernels run on their device's process
        graphs.turn_on_determinism()
    data, towers, timeout = settings.data, settings.towers, settings.cluster.cluster_timeout_secs
    local, files = devices.Devices((), on_gpus=False), tuple[str, ...]()
    flags = dict(variable_update=towers.variable_update, deterministic=str(graphs.is_deterministic()).lower(),
                 cluster_timeout_secs=timeout, stuck_secs=settings.run.stuck_secs)
    if cluster.job == 'worker':
        check_network(settings)
        local = local_devices(towers)
        if not DATASETS.is_code(data.dataset):
            files = find_images(settings, look(settings.run.train_dir)).images().files
        flags.update(dataset=data.dataset, data_dir=data.data_dir, image_size=data.image_size,
                     num_gpus=towers.num_gpus, tower_device='gpu' if local.on_gpus else 'cpu')
    return member.take_part(cluster, local, lambda *given: train(settings, termination, *given), timeout,
                            not UPDATE_MODES.load(towers.variable_update).has_copies, files, termination, flags,
                            settings.cluster.port_filter)
