"""Evaluation: the precision of the newest checkpoint, with every example counted once."""
import os
import time

import tensorflow.compat.v1 as tf

from cifar10.data import records
from cifar10.errors import UsageError
from cifar10.parallel import devices, gpus
from cifar10.parallel.session_config import session_config
from cifar10.registry import DATASETS
from cifar10.run import checkpoint
from cifar10.run.train_dir import TrainDir, check_eval_dir
from cifar10.settings.evaluation import EvalSettings
from cifar10.trained import model
from cifar10.trained.evaluator import Evaluator
from cifar10.trained.report import Report


def evaluate(settings: EvalSettings) -> None:
    """Evaluates the newest checkpoint, and unless `settings.run_once`, each newer one as it appears."""
    directory = TrainDir(settings.checkpoint_dir)
    device = devices.choose(1, settings.tower_device)
    gpus.claim(device.num_gpus)
    model.check_checkpoint_dir(directory, needed=settings.run_once)
    check_eval_dir(settings.eval_dir, settings.checkpoint_dir)
    while _evaluate_run(settings, directory, device):
        print(f'run        another run has begun in {directory.path}; its checkpoints are evaluated from here on')


def _evaluate_run(settings, directory, device):
    """Evaluates the run that is in a directory; returns True when another one takes its place, False at the end."""
    if not settings.run_once:
        _wait_for_first(directory)
    stored = model.load_stored(settings, directory)
    data = _prepare_data(stored, settings)
    run = model.load_run(settings, directory, data)

    def is_another():
        stored_now = directory.stored()
        return (stored_now.run if stored_now else None) != stored.run
    with model.plain_errors(), tf.Graph().as_default():
        evaluator = Evaluator(data, run.recipe, device.tower_devices, settings.batch_size, settings.num_examples,
                              run.averaging)
        restorer = model.Restorer(run.use_ema)
        report = _report(settings, run, evaluator.fetched)
        with tf.Session(config=session_config(device)) as session:
            session.run(evaluator.read)

            def evaluate_one(prefix):
                with report.candidate(prefix) as candidate:
                    try:
                        step = restorer.restore(session, prefix)
                    except UsageError:
                        if is_another():  # with another network
                            return False
                        raise
                    # Settings are written before checkpoints, so while they are this run's, what was read is, too.
                    if step is None or is_another():
                        return False
                    report(session, candidate, step, evaluator.run(session))
                    return True
            another = _watch(directory, settings, evaluate_one, is_another)
            # Not after an interrupt: a file whose flush was broken off cannot be closed.
            report.close()
            return another


def _wait_for_first(directory):
    if not directory.checkpoints():
        print(f'waiting for the first checkpoint in {directory.path}')
    while not directory.checkpoints():
        time.sleep(1)


def _prepare_data(stored, settings):
    """Returns the Records to evaluate a run on, given what it stored."""
    data = stored.settings.data
    data_dir = settings.data_dir or data.data_dir
    part = records.TEST if settings.eval_data == 'test' else records.TRAIN
    images = records.prepare(data.dataset, data_dir, part, data.test_fraction)
    if DATASETS.is_own(data.dataset) and stored.examples is not None:
        count = records.prepare(data.dataset, data_dir, records.TRAIN, data.test_fraction).count
        if count != stored.examples:  # what was held out of these may have been trained on
            raise UsageError(f'the run in {settings.checkpoint_dir} was trained on {stored.examples} images of '
                             f'{data.dataset}, which has {count} now; evaluate it on those that it was trained with')
    if settings.num_examples and settings.num_examples > images.count:
        raise UsageError(f'--num_examples={settings.num_examples}, but there are {images.count} {settings.eval_data} '
                         'images; leave it out to take all')
    print(f'data       {images}')
    return images


def _report(settings, run, fetched):
    """Returns the Report of an evaluation."""
    evaluated = dict(run=run.stored.run, data=settings.eval_data, num_examples=settings.num_examples,
                     use_ema=run.use_ema)
    return Report(settings.eval_dir, run.classes, fetched, evaluated, settings.keep_best, settings.per_class)


def _watch(directory, settings, evaluate_one, is_another=lambda: False):
    """Calls `evaluate_one` with the newest readable checkpoint, then with each newer one; with none twice.

    Args:
      directory: a TrainDir.
      settings: of the evaluation.
      evaluate_one: function prefix -> bool; False: it is there no longer, or it is another run's.
      is_another: function that returns whether the directory has another run by now.

    Returns:
      Whether it has; False: the only checkpoint that was asked for is evaluated.
    """
    done = None
    while True:
        if is_another():
            return True
        prefix = checkpoint.newest(directory)
        # A new run may reuse the name, so the time counts too.
        look = (prefix, _modified(prefix)) if prefix else None
        if look and look != done:
            if not evaluate_one(prefix):
                continue
            done = look
        if settings.run_once:
            if not done:
                raise model.no_checkpoint(directory)
            return False
        time.sleep(settings.eval_interval_secs)


def _modified(prefix):
    try:
        return os.path.getmtime(prefix + '.index')
    except OSError:
        return None  # rotated away this moment
