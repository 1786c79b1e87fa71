"""Evaluation: the precision of the newest checkpoint, with every example counted once."""
import os
import time
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base import files
from cifar10.base.console import Output, say, say_all
from cifar10.base.directories import check_dir, make_dir, refuse_of_others
from cifar10.base.errors import RunError, UsageError
from cifar10.base.graphs import seeded_graph
from cifar10.base.registry import DATASETS
from cifar10.data import records
from cifar10.evaluation import confusion, model, tensorboard
from cifar10.evaluation.evaluator import Evaluator, Result, say_if_few, trained_session
from cifar10.run import failures, metrics, saved
from cifar10.run.folder import LIST, SETTINGS, glance
from cifar10.run.tensorboard import Events
from cifar10.settings.evaluation import EvalSettings


def evaluate(settings: EvalSettings,
             done: Callable[[str, int, tuple[str, ...], Result], Any] = lambda *evaluated: None) -> None:
    """Evaluates the newest checkpoint and then, unless `settings.run_once`, each newer one as it appears.

    Args:
      settings: of the evaluation.
      done: function (prefix of the checkpoint, its step, the names of the classes, the Result) that is called once an
        evaluation is reported.
    """
    look, devices = model.open_checkpoint_dir(settings, required=settings.run_once)
    folder = look()
    _check_eval_dir(settings.eval_dir, folder)
    say('device', str(devices))
    if not settings.run_once and not folder.checkpoints:
        say('', f'waiting for the first checkpoint in {folder.path}')
        while not look().checkpoints:
            time.sleep(1)
    with failures.plain_errors(), seeded_graph():
        evaluation = _Evaluation(settings, look, devices)
        with trained_session(devices) as session:
            session.run(evaluation.evaluator.read)
            last = None  # what was evaluated last
            while not (last and settings.run_once):
                found = saved.newest(look) if look().checkpoints[-1:] != (last,) else None
                if found and found.prefix != last:
                    done(*evaluation.evaluate(session, found))
                    last = found.prefix
                elif settings.run_once:
                    raise model.no_checkpoint(look())
                else:
                    evaluation.refuse_another_run()
                    time.sleep(settings.eval_interval_secs)
            # Not in a `finally`: an interrupt may break off a flush of the file, which then cannot be closed.
            evaluation.events.close()


def _check_eval_dir(path, folder):
    """Raises a UsageError if a directory is no eval_dir, or holds a run: TensorBoard would mix the curves of both."""
    refuse_of_others(path, f'--eval_dir={path}')
    check_dir(path, '--eval_dir')
    if os.path.realpath(path) == os.path.realpath(folder.path):
        raise UsageError(f'--eval_dir={path} is {folder.given}; use another directory')
    found = glance(path, 'eval_dir')
    if found.checkpoints or found.files & {LIST, SETTINGS}:
        raise UsageError(f'--eval_dir={path} holds checkpoints, or the run that will write some; use another directory')


class _Evaluation:
    """Evaluates the run that is in a directory now, in the current graph, and reports what comes out.

    Args:
      settings: the settings of the evaluation.
      look: function that returns what is in the directory of the run, whenever it is called.
      devices: the devices to evaluate on.

    Attributes:
      evaluator: the Evaluator.
      events: the file for TensorBoard.
    """

    def __init__(self, settings, look, devices):
        folder = look()
        stored = model.load_stored(settings, folder)
        if settings.run_once and saved.newest(look) is None:
            raise model.no_checkpoint(folder)  # before anything is downloaded or written
        data = _prepare_data(stored, settings, folder.given)
        self._run = model.load_run(settings, folder, stored, data)
        self._look = look
        self._settings = settings
        self.evaluator = Evaluator(data, self._run.recipe, devices.tower_devices, model.batch_size(settings, self._run),
                                   settings.num_examples, self._run.averaging)
        self._restorer = model.Restorer(self._run.use_ema)
        # What is evaluated and how, for every record.
        self._evaluation = dict(run=stored.run, data=settings.eval_data, num_examples=settings.num_examples,
                                use_ema=self._run.use_ema)
        eval_dir = settings.eval_dir
        make_dir(eval_dir, '--eval_dir')
        runs = {record.get('run') for record in metrics.read(eval_dir, metrics.EVAL)}
        if runs - {None, stored.run}:
            say('warning', f'--eval_dir={eval_dir} has evaluations of another run too, and TensorBoard would join '
                           'their curves; use another --eval_dir')
        self._metrics = metrics.Metrics(eval_dir)
        self.events = Events(eval_dir)
        self.events.add_graph(tf.get_default_graph())

    def refuse_another_run(self):
        """Returns what is in the directory of the run; raises a RunError if another one has taken its place."""
        folder = self._look()
        if not folder.is_run(self._run.stored.run):
            # A restart has deleted the evaluations in the train_dir with their run.
            is_deleted = not os.path.exists(os.path.join(self._settings.eval_dir, metrics.NAME))
            another = '' if is_deleted else ', with another --eval_dir'
            raise RunError(f'the run in {folder.path} was replaced or removed; start again for the new one'
                           f'{another}')
        return folder

    def evaluate(self, session, found):
        """Evaluates a checkpoint; returns what `done` of it gets."""
        eval_dir = self._settings.eval_dir
        with files.locked(os.path.join(eval_dir, 'lock'), waiting=f'another evaluation in {eval_dir}'):
            try:
                self._restorer.restore(session, found)
            except UsageError:
                self.refuse_another_run()  # it is one of another network
                raise
            # Another run writes its settings before its checkpoints. So if the settings are still those of
            # this run, the checkpoint was too.
            if stored := self.refuse_another_run().run:  # the tutorial's run gets an id where it is gone on with
                self._evaluation['run'] = stored.run
            result = self.evaluator.run(session)
            record = self._report(found.step, result)
        # Without the lock, because a callback may evaluate too.
        Output.current.record(record)
        return found.prefix, found.step, self._run.classes, result

    def _report(self, step, result):
        """Reports the Result of a checkpoint; returns the record to send."""
        say('', result.line(step))
        if self._settings.per_class:
            if result.averaged_correct is not None:
                say('', 'each class, without test-time averaging:')
            say_all(confusion.lines(result.confusion, self._run.classes))
        tensorboard.write(self.events, step, result, self._run.classes)
        return self._metrics.write(metrics.EVAL, step, replacing=('step', *self._evaluation), **result.figures,
                                   **self._evaluation)


def _prepare_data(stored, settings, where):
    """Returns the Records to evaluate a run on, given its newest record and its directory as a user gives it."""
    data = stored.settings.replace(data_dir=settings.data_dir or stored.settings.data.data_dir).data
    if stored.run and not settings.data_dir and not DATASETS.is_own(data.dataset) and not os.path.isdir(data.data_dir):
        say('not here', f"the run's --data_dir={data.data_dir}, so the data set is made there again; if it is "
                        'elsewhere now, give that --data_dir')
    if settings.dataset is None:
        stored.refuse_moved_images(settings.checkpoint_dir)
    part = records.TEST if settings.eval_data == 'test' else records.TRAIN
    images = records.prepared(data, part)
    if DATASETS.is_own(data.dataset) and stored.examples is not None:
        # The run may have been trained on images that are test images now.
        trained = records.prepared(data)
        stored.refuse_another(dict(examples=trained.count), where, model.OWN_IMAGES)
        if stored.difference_to(dict(images_sha256=trained.digest())):
            say('warning', 'the training images have changed since the run was trained on them, so test images may '
                           'have been among them')
        if part == records.TEST:
            if stored.difference_to(dict(test_sha256=images.digest())):
                say('warning', 'the test images are not those that belonged to the run when it was trained')
            records.warn_of_shared(trained, images)
    if settings.num_examples and settings.num_examples > images.count:
        raise UsageError(f'--num_examples={settings.num_examples}, but there are {images.count} {settings.eval_data} '
                         'images; leave it out to take all')
    say('data', str(images))
    say_if_few(images.count)
    return images
