"""Evaluation: the precision of the newest checkpoint, with every example counted once."""
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from cifar10.base import own
from cifar10.base.console import say
from cifar10.base.directories import make_dir, refuse_of_others
from cifar10.base.errors import UsageError
from cifar10.base.registry import DATASETS
from cifar10.data import records
from cifar10.evaluation import model
from cifar10.evaluation.evaluator import Evaluator, Result, trained_session
from cifar10.evaluation.report import Report
from cifar10.run import failures, saved
from cifar10.run.names import LIST, SETTINGS
from cifar10.run.train_dir import TrainDir
from cifar10.settings.evaluation import EvalSettings


class Evaluated(NamedTuple):
    """An evaluation of a checkpoint.

    Attributes:
      checkpoint: prefix of the checkpoint.
      step: its step.
      classes: the names of the classes.
      result: what came out.
    """
    checkpoint: str
    step: int
    classes: tuple[str, ...]
    result: Result


def evaluate(settings: EvalSettings, done: Callable[[Evaluated], Any] = lambda evaluated: None) -> None:
    """Evaluates the newest checkpoint and then, unless `settings.run_once`, each newer one as it appears.

    Args:
      settings: of the evaluation.
      done: function that gets each evaluation once it is reported.
    """
    directory, devices = model.open_checkpoint_dir(settings, required=settings.run_once)
    _check_eval_dir(settings.eval_dir, settings.checkpoint_dir)
    while _evaluate_run(settings, directory, devices, done):
        say(f'run        another run has begun in {directory.path}; its checkpoints are evaluated from here on')


def _check_eval_dir(path, checkpoint_dir):
    """Makes an eval_dir; raises a UsageError if it holds a run: TensorBoard would mix the curves of both."""
    refuse_of_others(path, f'--eval_dir={path}')
    make_dir(path, '--eval_dir')
    if os.path.realpath(path) == os.path.realpath(checkpoint_dir):
        raise UsageError(f'--eval_dir={path} is --checkpoint_dir; use another directory')
    if TrainDir(path).checkpoints() or {LIST, SETTINGS} & set(os.listdir(path)):
        raise UsageError(f'--eval_dir={path} holds checkpoints, or the run that will write some; use another directory')


def _evaluate_run(settings, directory, devices, done):
    """Evaluates the run in a directory. Returns True if another run takes its place, False if `run_once` is done."""
    if not settings.run_once:
        _wait_for_first(directory)
    stored = model.load_stored(settings, directory)
    data = _prepare_data(stored, settings)
    run = model.load_run(settings, directory, stored, data)

    def is_another():
        stored_now = directory.stored()
        return (stored_now.run if stored_now else None) != stored.run

    with failures.plain_errors(), own.graph():
        evaluator = Evaluator(data, run.recipe, devices.tower_devices, settings.batch_size, settings.num_examples,
                              run.averaging)
        restorer = model.Restorer(run.use_ema)
        report = _report(settings, run)
        with trained_session(devices) as session:
            session.run(evaluator.read)

            def evaluate_one(prefix):
                with report.candidate(prefix) as candidate:
                    try:
                        step = restorer.restore(session, prefix)
                    except UsageError:
                        if is_another():  # with another network
                            return False
                        raise
                    # Another run writes its settings before its checkpoints. So if the settings are still those of
                    # this run, the checkpoint was too.
                    if step is None or is_another():
                        return False
                    result = evaluator.run(session)
                    report(session, candidate, step, result)
                    done(Evaluated(prefix, step, run.classes, result))
                    return True

            has_another = _watch(directory, settings, evaluate_one, is_another)
            # Not in a `finally`: an interrupt may break off a flush of the file, which then cannot be closed.
            report.close()
            return has_another


def _wait_for_first(directory):
    if not directory.checkpoints():
        say(f'waiting for the first checkpoint in {directory.path}')
    while not directory.checkpoints():
        time.sleep(1)


def _prepare_data(stored, settings):
    """Returns the Records to evaluate a run on, given what it stored."""
    data = stored.settings.data
    data_dir = settings.data_dir or data.data_dir
    part = records.TEST if settings.eval_data == 'test' else records.TRAIN
    images = records.prepare(data.dataset, data_dir, part, data.test_fraction, data.image_size)
    if DATASETS.is_own(data.dataset) and stored.examples is not None:
        # The run may have been trained on images that are test images now.
        trained = records.prepare(data.dataset, data_dir, records.TRAIN, data.test_fraction, data.image_size)
        if trained.count != stored.examples:
            raise UsageError(f'the run in {settings.checkpoint_dir} was trained on {stored.examples} images of '
                             f'{data.dataset}, which has {trained.count} now; evaluate it on the images it was trained '
                             'with')
        if stored.images_sha256 not in (None, trained.digest()):
            say('warning: the training images have changed since the run was trained on them, so test images may have '
                'been among them')
    if settings.num_examples and settings.num_examples > images.count:
        raise UsageError(f'--num_examples={settings.num_examples}, but there are {images.count} {settings.eval_data} '
                         'images; leave it out to take all')
    say(f'data       {images}')
    return images


def _report(settings, run):
    """Returns the Report of a run's evaluation."""
    evaluation = dict(run=run.stored.run, data=settings.eval_data, num_examples=settings.num_examples,
                      use_ema=run.use_ema)
    return Report(settings.eval_dir, run.classes, evaluation, settings.keep_best, settings.per_class)


def _watch(directory, settings, evaluate_one, is_another=lambda: False):
    """Calls `evaluate_one` with the newest readable checkpoint and then with each newer one, once each.

    Args:
      directory: the TrainDir of the run.
      settings: the settings of the evaluation.
      evaluate_one: function prefix -> bool; False if the checkpoint was deleted, or is another run's.
      is_another: function without arguments that returns whether the directory has another run by now.

    Returns:
      True if it has; False if `settings.run_once` and the newest checkpoint has been evaluated.
    """
    done = None
    while True:
        if is_another():
            return True
        prefix = saved.newest(directory)
        # With its time, because a new run may write a checkpoint of the same name.
        newest = (prefix, _modified(prefix)) if prefix else None
        if newest and newest != done:
            if not evaluate_one(prefix):
                continue
            done = newest
        if settings.run_once:
            if done is None:
                raise model.no_checkpoint(directory)
            return False
        time.sleep(settings.eval_interval_secs)


def _modified(prefix):
    """Returns when a checkpoint was written, or None if it was deleted this moment."""
    try:
        return os.path.getmtime(prefix + '.index')
    except OSError:
        return None
