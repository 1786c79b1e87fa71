"""Evaluation: the accuracy of the newest checkpoint, with every example counted once."""
import contextlib
import dataclasses
import datetime
import os
import time
from collections.abc import Callable
from typing import Any

from cifar10.base import files
from cifar10.base.console import Output, say, say_all
from cifar10.base.directories import EVALUATIONS, check_dir, make_dir
from cifar10.base.errors import RunError, UsageError, listed
from cifar10.base.graphs import seeded_graph
from cifar10.base.registry import DATASETS
from cifar10.data import records
from cifar10.data.records import ARRAYS
from cifar10.evaluation import confusion, tensorboard, trained
from cifar10.evaluation.evaluator import Evaluator, Result, ScalarResult, say_if_few, trained_session
from cifar10.run import checkpoints, failures, metrics
from cifar10.run.folder import LIST, SETTINGS, glance
from cifar10.run.tensorboard import SHOWN, Events
from cifar10.settings.evaluation import EvalSettings
from cifar10.settings.training import hyperparameters


def evaluate(settings: EvalSettings,
             done: Callable[[str, int, tuple[str, ...], Result], Any] = lambda *evaluated: None) -> None:
    """Evaluates the newest checkpoint and then, unless `settings.run_once`, each newer one as it appears.

    Args:
      done: function (prefix of the checkpoint, its step, the names of the classes, the Result) that is called once an
        evaluation is reported.
    """
    look, devices = trained.open_checkpoint_dir(settings, required=settings.run_once)
    if settings.dataset is None:  # of another data set, nothing is written
        _check_eval_dir(settings.eval_dir, look())
    say('device', str(devices))
    folder, first = _first_checkpoint(look, settings.run_once)
    record = trained.load_record(settings, folder)
    data, is_runs = _prepare_data(record, settings, folder)
    run = trained.load_run(settings, folder, record, data if is_runs else None)
    if settings.per_class and not run.recipe.has_classes:
        raise UsageError('--per_class is for models that predict classes; leave it out')
    with failures.plain_errors(), seeded_graph():
        evaluator = Evaluator(data, run.recipe, devices.tower_devices, trained.batch_size(settings, run),
                              settings.num_examples, run.averaging, run.classes)
        restorer = trained.Restorer(run)
        reports = _Reports(settings, run, is_runs)
        with trained_session(devices) as session:
            session.run(evaluator.read)
            for found in _in_turn(look, first, record.run_id, settings):
                with reports.alone():
                    # Another run writes its settings before its checkpoints. So if the settings are still those of
                    # this run, the checkpoint was too.
                    _refuse_another_run(look(), record.run_id, settings.eval_dir)
                    restorer.restore(session, found)
                    result = evaluator.run(session)
                    added = reports.add(found.step, result)
                # Without the lock, because a callback may evaluate too.
                Output.current.record(added)
                done(found.prefix, found.step, run.classes, result)
            # Not in a `finally`: an interrupt may break off a flush of the file, which then cannot be closed.
            reports.close()


def _check_eval_dir(path, folder):
    """Raises a UsageError if a directory is no eval_dir, or holds a run: TensorBoard would mix the curves of both."""
    check_dir(path, '--eval_dir')
    if os.path.realpath(path) == os.path.realpath(folder.path):
        raise UsageError(f'--eval_dir={path} is {folder.given}; use another directory')
    found = glance(path, 'eval_dir')
    if found.checkpoints or found.files & {LIST, SETTINGS}:
        raise UsageError(f'--eval_dir={path} holds checkpoints, or the run that will write some; use another directory')


def _first_checkpoint(look, run_once):
    """Returns (what is in the folder of a run, its newest checkpoint); unless `run_once`, waits for the first one.

    The checkpoint is None if none can be read; with `run_once` that is an error.
    """
    folder = look()
    if not folder.checkpoints and not run_once:
        say('waiting', f'for the first checkpoint in {folder.path}; looks every second')
        while not folder.checkpoints:
            time.sleep(1)
            folder = look()
    found = checkpoints.newest(look)
    if found is None and run_once:
        raise trained.no_checkpoint(folder)
    return folder, found


def _in_turn(look, first, run, settings):
    """Yields the first checkpoint that can be read and then, unless `run_once`, each newer one as it appears."""
    found = first or _newer(look, None, run, settings)
    while True:
        yield found
        if settings.run_once:
            return
        step = found.step
        found.values.clear()  # they take the memory of a whole checkpoint
        say('waiting', f'for a checkpoint after step {step}; looks every {settings.eval_interval_secs} s')
        found = _newer(look, found.prefix, run, settings)


def _newer(look, last, run, settings):
    """Waits for another checkpoint of a run than the last one; returns it once it is the newest that can be read."""
    while True:
        folder = look()
        if folder.checkpoints[-1:] != (last,):
            found = checkpoints.newest(look)
            if found and found.prefix != last:
                return found
        _refuse_another_run(folder, run, settings.eval_dir)
        time.sleep(settings.eval_interval_secs)


def _refuse_another_run(folder, run, eval_dir):
    """Raises a RunError if another run has taken the place of one in its folder."""
    if folder.run_id != run:
        # A restart has renamed the train_dir with the evaluations in it.
        is_gone = not os.path.exists(os.path.join(eval_dir, metrics.NAME))
        another = '' if is_gone else ', with another --eval_dir'
        raise RunError(f'the run in {folder.path} was replaced or removed; start again to evaluate the new '
                       f'one{another}')


class _Reports:
    """The results of a run. Those on its own images are also written to an eval_dir."""

    def __init__(self, settings, run, is_written):
        self._eval_dir = eval_dir = settings.eval_dir
        self._classes = run.classes
        self._per_class = settings.per_class
        # Training images are evaluated to find those in the wrong class; their curves are apart from the test images'.
        of_tests = settings.eval_data == 'test'
        self._lists, self._group = settings.per_class or not of_tests, '' if of_tests else f'{settings.eval_data}/'
        # What is evaluated and how, for every record.
        self._evaluation = dict(run=run.record.run_id, data=settings.eval_data, num_examples=settings.num_examples,
                                use_ema=run.use_ema)
        self._metrics = self._events = None
        if not is_written:
            self._evaluation['dataset'] = settings.dataset
            return
        make_dir(eval_dir, '--eval_dir')
        if {record.get('run') for record in metrics.read(eval_dir, metrics.EVAL)} - {None, run.record.run_id}:
            say('warning', f'--eval_dir={eval_dir} has evaluations of another run too, and TensorBoard would join '
                           'their curves; use another --eval_dir')
        self._metrics = metrics.Metrics(eval_dir)
        self._events = Events(eval_dir)
        self._events.add_hyperparameters(hyperparameters(run.record.settings))

    def alone(self):
        """Returns a context in which no other evaluation writes to the eval_dir."""
        if not self._metrics:
            return contextlib.nullcontext()
        return files.locked(os.path.join(self._eval_dir, 'lock'), waiting=f'another evaluation in {self._eval_dir}')

    def add(self, step, result):
        """Reports the Result of a step; returns the record."""
        say(datetime.datetime.now(), f'{result}, step {step}')
        if isinstance(result, ScalarResult):
            return self._add_figures(step, result, result.figures)
        if self._per_class:
            if result.averaged_correct is not None:
                say('', 'each class, without test-time averaging:')
            say_all(confusion.lines(result.confusion, self._classes))
        largest = result.named_losses(self._classes)
        if self._lists:
            say_all(confusion.largest_losses(largest))
        return self._add_figures(step, result, dict(result.figures, largest_losses=largest))

    def _add_figures(self, step, result, figures):
        figures = dict(figures, **self._evaluation)
        if not self._metrics:
            return metrics.record_of(metrics.EVAL, step, **figures)
        tensorboard.write(self._events, step, result, self._classes, self._group, self._known(step, result))
        return self._metrics.write(metrics.EVAL, step, replacing=('step', *self._evaluation), **figures)

    def close(self):
        if self._events:
            self._events.close()

    def _known(self, step, result):
        """Returns the names of the figures that TensorBoard has already: those of an evaluation with the same result.

        It was one of this program, or one between two steps of the run.
        """
        folder, name = os.path.split(os.path.realpath(self._eval_dir))
        folders = [self._eval_dir, *([folder] if name == EVALUATIONS else [])]
        figures = {name: metrics.rounded(value) for name, value in result.figures.items() if name in SHOWN}
        now = dict(figures, step=step, examples=result.count, run=self._evaluation['run'],
                   data=self._evaluation['data'])
        of_run = dict(run=now['run'], data='test')  # which its own evaluations do not record
        return set().union(*(record for each in folders for record in metrics.read(each, metrics.EVAL)
                             if now.items() <= {**of_run, **record}.items()))


def _prepare_data(record, settings, folder):
    """Returns (the Records to evaluate a run on, whether they are the run's own images).

    Args:
      record: the newest record of the run.
      folder: the Folder of the run.
    """
    data = record.settings.replace(data_dir=settings.data_dir or record.settings.data.data_dir).data
    own = _find_own(record, settings, data)
    images = _own_images(record, settings, folder, own) if own else _other_images(record, settings, data)
    if settings.num_examples and settings.num_examples > images.count:
        raise UsageError(f'--num_examples={settings.num_examples}, but there are {images.count} {settings.eval_data} '
                         'images; leave it out to use all')
    say('data', str(images) + ('' if own else "; they are not the run's, so the result is only printed"))
    if settings.eval_data == 'test':
        say_if_few(images, is_held_out=bool(own))
    return images, bool(own)


def _find_own(record, settings, data):
    """Returns the Found of the run's own images; None if the settings name another data set."""
    if settings.dataset in (None, data.dataset):
        is_named = DATASETS.is_own(data.dataset) or settings.data_dir
        if record.run_id and not is_named and not os.path.isdir(data.data_dir):
            say('not here', f"the run's --data_dir={data.data_dir}, so the data set will be made there; if it was "
                            'moved, give its new --data_dir')
        return records.find(data, record.images_folder)
    if DATASETS.is_own(settings.dataset) and DATASETS.is_own(data.dataset):
        with contextlib.suppress(UsageError):  # they cannot be divided as the run's were
            own = dataclasses.replace(data, dataset=settings.dataset)
            found = records.find(own)
            if found.has_files_of(record.images_folder):
                return records.find(own, record.images_folder)
            # Copies may have new times, so pixels decide. The run may have left out files that are no pictures.
            classes, labels = found.dataset.expected()
            if classes == record.classes and len(labels[records.TRAIN]) >= record.examples and (
                    found.records(records.TRAIN).digest == record.images_sha256):
                return found
    return None


def _own_images(record, settings, folder, found):
    """Returns the Records of a part of the run's own images, which were found."""
    records.refuse_among_images(settings.eval_dir, '--eval_dir', found.name)
    _check_eval_dir(settings.eval_dir, folder)
    part = records.TEST if settings.eval_data == 'test' else records.TRAIN
    images = found.records(part)
    if DATASETS.is_own(found.name) and record.examples is not None:
        # The run may have been trained on images that are test images now.
        before = images if part == records.TRAIN else found.records(records.TRAIN)
        record.refuse_another(dict(examples=before.count), folder.given, trained.OWN_IMAGES)
        if record.difference_to(dict(images_sha256=before.digest)):
            say('warning', 'the training images have changed since the run was trained on them, so test images may '
                           'have been among them')
        if part == records.TEST:
            if record.difference_to(dict(test_sha256=images.digest)):
                say('warning', 'the test images are not those that belonged to the run when it was trained')
            records.warn_of_equal(before, images)
    return images


def _other_images(record, settings, data):
    """Returns the Records of another data set than the run's, with the run's names of the classes."""
    name = settings.dataset
    if settings.eval_data != 'test':
        raise UsageError(f"--eval_data={settings.eval_data} is for the run's own images, but --dataset={name} is "
                         'another data set; leave one of them out')
    found = records.find_other(data, name)
    classes = found.dataset.classes or found.dataset.expected()[0]
    # Arrays have numbers instead of names.
    known = [str(label) for label in range(len(record.classes))] if name.endswith(ARRAYS) else list(record.classes)
    if unknown := [each for each in classes if each not in known]:
        raise UsageError(f'--dataset={name} has classes that the run does not have: {listed(unknown)}; leave them out, '
                         f"or give them the run's names: {listed(known)}")
    images = found.records(records.TEST)
    images = dataclasses.replace(images, classes=tuple(record.classes[known.index(each)] for each in classes))
    with contextlib.suppress(UsageError):  # the run's own images may be on another machine
        own = records.find(data, record.images_folder)
        if os.path.isdir(own.folder):
            records.warn_of_equal(own._replace(line=None).records(records.TRAIN), images)
    return images
