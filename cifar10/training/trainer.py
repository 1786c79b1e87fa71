"""Training: from settings to checkpoints in train_dir."""
import os
import shlex
import time
from collections.abc import Callable, Sequence

from cifar10.base.console import Line, reader_may_leave, say, say_all
from cifar10.base.installed import command
from cifar10.base.registry import DATASETS
from cifar10.base.signals import Termination
from cifar10.evaluation.evaluator import Validation, say_if_few
from cifar10.parallel.devices import Devices
from cifar10.run import checkpoint, failures, takeover
from cifar10.run.folder import look, step_of
from cifar10.run.train_dir import TrainDir
from cifar10.settings.training import TrainSettings
from cifar10.training.description import advise, describe, describe_run
from cifar10.training.loop import take_steps
from cifar10.training.planning import decide, record_of, remark
from cifar10.training.reports import Reports
from cifar10.training.run import Run
from cifar10.training.start import (
    BEFORE_DATA,
    Start,
    check_space,
    find_checkpoint,
    local_devices,
    offering_shapes,
    prepare_data,
    refuse_misfit,
    refuse_other_images,
    space_for_files,
)
from cifar10.training.warm_start import take_model

PLANNING = (find_checkpoint, decide, remark, take_model)
WITH_DATA = (*PLANNING, refuse_other_images, describe, advise, describe_run)


def train(settings: TrainSettings, termination: Termination | None = None, devices: Devices | None = None,
          before_session: Callable[[], None] | None = None) -> tuple[str, int, str | None]:
    """Trains until `max_steps`, `epochs` or `patience` end the run, resuming the one in `train_dir` if there is one.

    Args:
      termination: handles the signals that end the run after a step; or None.
      devices: the devices to train on; default: the ones on this machine that the settings ask for.
      before_session: function that is called before each session is made, or None.

    Returns:
      (the prefix of the run's newest checkpoint, its step, which of these settings has ended the run; None after a
      signal).
    """
    began = time.perf_counter()
    start = prepared(settings, devices)
    directory = TrainDir(settings.run.train_dir)
    with directory.locked(), failures.plain_errors(directory.path):
        go_through(start, WITH_DATA)
        plan = start.plan
        if plan.finished:
            checkpoint.tidy(start.folder, plan.step, settings.reports.max_to_keep)
            return plan.checkpoint, plan.step, plan.ended_by
        run, validation, record = Run(plan), validation_of(start), record_of(start)
        refuse_misfit(start, run.saved)
        say_all(check_space(space_for_files(start, run.saved.values()), directory.path))
        if takeover.sets_aside(start.folder, settings):  # last, once all that can refuse a start has been done
            say('restart', f'the earlier run is now in {directory.set_aside()}')
            start.folder = look(directory.path)
        with Reports(run, directory, start, validation, record, began) as reports:
            take_steps(run, reports, termination, before_session)
    newest = reports.checkpoints.last
    ended = plan._replace(step=step_of(newest), is_spent=reports.is_spent)
    with reader_may_leave():
        say('saved', f"{newest}{'' if ended.finished else '; start again to continue'}")
        if ended.finished:
            say_all(_next(settings, reports.best))
    return newest, ended.step, ended.ended_by


def _next(settings, best):
    """Returns lines about what to do after a run: with its best checkpoint, with the user's own images."""
    described = best.describe() if best else ''
    of_run, of_model = (f"{command('eval')} --train_dir={shlex.quote(os.path.abspath(path))}"
                        for path in (settings.run.train_dir, best.path if described else settings.run.train_dir))
    lines = [Line('best', described)] if described else []
    lines.append(Line('next', f'{of_model} --run_once evaluates the model; --image=FILE classifies, '
                              '--export_dir=DIR exports it'))
    if DATASETS.is_own(settings.data.dataset):
        lines.append(Line('next', f'{of_run} --run_once --eval_data=train_eval lists the images that fit their class '
                                  'least: some may have the wrong one'))
    return lines


def prepared(settings: TrainSettings, devices: Devices | None = None) -> Start:
    """Returns a start with its devices, which are claimed, and with its data. The arguments are as for `train`."""
    start = Start(settings, devices)
    go_through(start, BEFORE_DATA)
    if files := start.found.expected():
        files.check_space()
    with offering_shapes(start):
        prepare_data(start)
    return start


def go_through(start: Start, stages: Sequence[Callable]) -> None:
    """Runs stages in order, up to the first that raises a UsageError, and prints their lines."""
    for stage in stages:
        say_all(stage(start))


def validation_of(start: Start) -> Validation | None:
    """Returns the Validation of the run between two steps, on the devices of this process; None without one."""
    settings = start.plan.settings
    if not settings.reports.eval_steps:
        return None
    say_if_few(start.test, is_held_out=True)
    return Validation(start.plan.recipe, start.test, local_devices(settings.towers),
                      start.plan.recipe.moving_averages)
