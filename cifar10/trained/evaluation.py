"""Evaluation: the precision of the newest checkpoint, with every example counted once."""
import os
import time

import tensorflow.compat.v1 as tf

from cifar10.config import EvalConfig
from cifar10.data import records
from cifar10.directories import DATA_DIR
from cifar10.errors import UsageError
from cifar10.parallel import devices, gpus
from cifar10.parallel.session_config import session_config
from cifar10.registry import DATASETS
from cifar10.run import checkpoint
from cifar10.run.train_dir import TrainDir, check_eval_dir
from cifar10.trained import model
from cifar10.trained.evaluator import Evaluator
from cifar10.trained.report import Report


def evaluate(config: EvalConfig) -> None:
    """Evaluates the newest checkpoint, and unless `config.run_once`, each newer one as it appears.

    Args:
      config: a `config.EvalConfig`.

    Raises:
      UsageError: invalid configuration, or a checkpoint of another network; `run_once` and no such directory.
      RunError: `run_once` and there is no checkpoint that can be read, or an evaluation failed.
    """
    directory = TrainDir(config.checkpoint_dir)
    device = devices.choose(1, config.tower_device)
    gpus.claim(device.num_gpus)
    model.check_checkpoint_dir(directory, needed=config.run_once)
    check_eval_dir(config.eval_dir, config.checkpoint_dir)
    while _evaluate_run(config, directory, device):
        print(f'run        another run has begun in {directory.path}; its checkpoints are evaluated from here on')


def _evaluate_run(config, directory, device):
    """Evaluates the run that is in a directory; returns True when another one takes its place, False at the end."""
    if not config.run_once:
        _wait_for_first(directory)
    settings = model.settings(config, directory)
    data = _data_of(settings, config)
    run = model.find(config, directory, data)

    def is_another():
        return directory.run_id != settings.get('run')
    with model.plain_errors(), tf.Graph().as_default():
        evaluator = Evaluator(data, run.recipe, device.tower_devices, config.batch_size, config.num_examples,
                              run.averaging)
        restorer = model.Restorer(run.use_ema)
        report = _report(config, run, evaluator.fetched)
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
            another = _watch(directory, config, evaluate_one, is_another)
            # Not after an interrupt: a file whose flush was broken off cannot be closed.
            report.close()
            return another


def _wait_for_first(directory):
    if not directory.checkpoints():
        print(f'waiting for the first checkpoint in {directory.path}')
    while not directory.checkpoints():
        time.sleep(1)


def _data_of(run, config):
    """Returns the Records to evaluate a run on, given its settings."""
    where = run['dataset'], config.data_dir or run.get('data_dir', DATA_DIR)
    data = records.prepare(*where, records.TEST if config.eval_data == 'test' else records.TRAIN, run['test_fraction'])
    if DATASETS.is_own(run['dataset']) and 'examples' in run:
        count = records.prepare(*where, records.TRAIN, run['test_fraction']).count
        if count != run['examples']:  # what was held out of these may have been trained on
            raise UsageError(f"the run in {config.checkpoint_dir} was trained on {run['examples']} images of "
                             f"{run['dataset']}, which has {count} now; evaluate it on those that it was trained with")
    if config.num_examples and config.num_examples > data.count:
        raise UsageError(f'--num_examples={config.num_examples}, but there are {data.count} {config.eval_data} '
                         'images; leave it out to take all')
    print(f'data       {data}')
    return data


def _report(config, run, fetched):
    """Returns the Report of a config."""
    of = dict(run=run.settings.get('run'), data=config.eval_data, num_examples=config.num_examples, use_ema=run.use_ema)
    return Report(config.eval_dir, run.classes, fetched, of, config.keep_best, config.per_class)


def _watch(directory, config, evaluate_one, is_another=lambda: False):
    """Calls `evaluate_one` with the newest readable checkpoint, then with each newer one; with none twice.

    Args:
      directory: a TrainDir.
      config: a `config.EvalConfig`.
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
        if config.run_once:
            if not done:
                raise model.no_checkpoint(directory)
            return False
        time.sleep(config.eval_interval_secs)


def _modified(prefix):
    try:
        return os.path.getmtime(prefix + '.index')
    except OSError:
        return None  # rotated away this moment
