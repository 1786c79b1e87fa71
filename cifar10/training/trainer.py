"""Trains: from settings to checkpoints in train_dir."""
import os
import shlex
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from cifar10.base.console import Line, reader_may_leave, say, say_all
from cifar10.base.errors import UsageError
from cifar10.base.files import shortage
from cifar10.base.installed import command
from cifar10.base.registry import DATASETS
from cifar10.base.signals import Termination
from cifar10.parallel.devices import Devices
from cifar10.run import checkpoints, failures, takeover
from cifar10.run.best import counting, summary
from cifar10.run.folder import look, step_of
from cifar10.run.takeover import TrainDir
from cifar10.settings.training import TrainSettings
from cifar10.training import decisions
from cifar10.training.description import advise, describe, describe_run
from cifar10.training.loop import take_steps
from cifar10.training.plan import Plan
from cifar10.training.run import Run
from cifar10.training.run_files import RunFiles
from cifar10.training.start import local_devices, prepared

if TYPE_CHECKING:
    from cifar10.evaluation.trained import ModelSession

_VALIDATION_BATCH = 500  # maximum images


def train(settings: TrainSettings, termination: Termination | None = None, devices: Devices | None = None,
          before_session: Callable[[], None] | None = None) -> tuple[str, int, str | None]:
    """Trains until `max_steps`, `epochs` or `patience` end the run; resumes an existing run in `train_dir`.

    Args:
      termination: handles the signals that end the run after a step; or None.
      before_session: function to call before creating each session, or None.

    Returns:
      (prefix of the run's newest checkpoint, its step, the setting that ended the run, or None after a
      signal).
    """
    began = time.perf_counter()
    devices, images, lines = prepared(settings, devices)
    say_all(lines)
    directory = TrainDir(settings.run.train_dir)
    with directory.locked(), failures.plain_errors(directory.path):
        plan, lines = decisions.plan(settings, devices, images)
        say_all([*lines, *describe(plan), *advise(plan, settings), *describe_run(plan)])
        if plan.ended and plan.checkpoint:
            figure = counting(plan.settings) if plan.settings.reports.keep_best else None
            checkpoints.tidy(plan.folder, plan.step, settings.reports.max_to_keep, figure)
            return plan.checkpoint, plan.step, plan.ended
        run = Run(plan._replace(restored=None))
        check_built(run, plan)
        validation = validation_of(plan)
        folder, record, restored, plan = plan.folder, decisions.record_of(plan), plan.restored, run.plan
        if takeover.sets_aside(folder, settings):  # last, after all checks that can refuse a start
            say('restart', f'the earlier run is now in {directory.set_aside()}')
            folder = look(directory.path)
        with RunFiles(run, directory, folder, restored, validation, record, began) as files:
            del restored  # its values, which only the first session needs, may fill much memory
            take_steps(run, files, termination, before_session)
    newest = files.checkpoints.last
    ended = files.ended(step := step_of(newest))
    with reader_may_leave():
        say('saved', f"{newest}{'' if ended else '; start again to continue'}")
        if ended:
            say_all(_next(settings, files.checkpoints.best, step))
    return newest, step, ended


def check_built(run: Run, plan: Plan) -> None:
    """Raises a UsageError if the checkpoint of the plan lacks variables of the run, or the disk is full."""
    if found := plan.restored and plan.restored.misfit(run.saved):
        remedy = takeover.remedy(plan.folder, warm_start=True)
        raise UsageError(f'{plan.checkpoint} {found}: it belongs to another network or optimizer; {remedy}')
    size = sum(variable.shape.num_elements() * variable.dtype.size for variable in run.saved.values())
    if problem := shortage(plan.settings.run.train_dir, '--train_dir', size, 'a checkpoint'):
        raise UsageError(problem)


def validation_of(plan: Plan) -> 'ModelSession | None':
    """Returns the open evaluation that runs between steps, or None."""
    settings = plan.settings
    if not settings.reports.eval_steps:
        return None
    from cifar10.evaluation.batches import BatchEvaluator
    from cifar10.evaluation.evaluator import Evaluator
    from cifar10.evaluation.trained import ModelSession, batch_size
    devices = local_devices(settings.towers)

    def build():
        size = batch_size(plan.test.size, _VALIDATION_BATCH) if plan.test else settings.towers.batch_size
        if not (plan.test and plan.recipe.has_classes):
            return BatchEvaluator(plan.test or settings.data.dataset, plan.recipe, devices.tower_devices[0], size)
        return Evaluator(plan.test, plan.recipe, devices.tower_devices, size)
    validation = ModelSession(build, devices, plan.recipe.moving_averages)
    validation.session.run(validation.built.read)
    return validation


def _next(settings, best, step):
    """Returns suggestions after a run: for its best checkpoint, and for the user's own images."""
    of_run = f"{command('eval')} --train_dir={shlex.quote(os.path.abspath(settings.run.train_dir))}"
    which = '--checkpoint=best' if best else '--run_once'
    lines = [Line('best', summary(best, counting(settings)))] if best else []
    if DATASETS.is_code(settings.data.dataset):
        return [*lines, Line('next', f'{of_run} {which} evaluates the model; --csv=FILE writes predictions')]
    lines.append(Line('next', f'{of_run} {which} evaluates the model; --image=FILE classifies, --export_dir=DIR '
                              'exports it'))
    if os.path.isdir(folder := settings.data.dataset):
        paths = folder, f'{settings.run.train_dir}-{step}.csv'
        images, table = (shlex.quote(os.path.abspath(path)) for path in paths)
        lines.append(Line('next', f"{of_run}{' --checkpoint=best' * bool(best)} --image={images} --csv={table} lists "
                                  'the images that may be in the wrong folder'))
    return lines
