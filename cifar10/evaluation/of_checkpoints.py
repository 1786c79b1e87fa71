"""Evaluates the newest checkpoint of a run, and each newer checkpoint as it appears. Counts every example once."""
import contextlib
import datetime
import os
import time
from collections.abc import Callable
from typing import Any

from cifar10.base import locks
from cifar10.base.console import Output, say, say_all
from cifar10.base.directories import EVALUATIONS, check_dir, make_dir
from cifar10.base.errors import UsageError
from cifar10.evaluation import confusion, result_pictures
from cifar10.evaluation.batches import BatchEvaluator, evaluated_data
from cifar10.evaluation.evaluator import Evaluator
from cifar10.evaluation.images import evaluated_images
from cifar10.evaluation.result import EvalResult
from cifar10.evaluation.trained import Model, look_at
from cifar10.run import metrics
from cifar10.run.events import SHOWN, Events
from cifar10.run.folder import LIST, SETTINGS, glance
from cifar10.settings.evaluation import EvalSettings
from cifar10.settings.training import hyperparameters


def evaluate(settings: EvalSettings, done: Callable[[EvalResult], Any] = lambda result: None) -> None:
    """Evaluates the newest checkpoint and then, unless `settings.run_once`, each newer checkpoint as it appears.

    Args:
      done: function called with each result after it is reported.
    """
    if settings.dataset is None:  # an evaluation on a different data set writes nothing
        _check_eval_dir(settings)
    model = Model.open(settings, waits=not settings.run_once)
    say('device', str(model.devices))
    first = model.newest() if settings.run_once else model.newer(None)  # before any images are prepared for it
    data, is_runs = (evaluated_data(model, settings) if model.recipe.has_batches else
                     evaluated_images(model.record, settings))
    if is_runs:
        _check_eval_dir(settings)
    if settings.per_class and not model.recipe.has_classes:
        raise UsageError('--per_class is for models that predict classes; leave it out')

    def build():
        if isinstance(data, str) or not model.recipe.has_classes:
            return BatchEvaluator(data, model.recipe, model.devices.tower_devices[0], model.batch_size,
                                  settings.num_examples)
        return Evaluator(data, model.recipe, model.devices.tower_devices, model.batch_size, settings.num_examples,
                         model.averaging, model.classes)
    with model.session(build) as opened:
        log = _Log(settings, model, is_runs)
        opened.session.run(opened.built.read)
        for found in _in_turn(model, first, settings):
            with log.alone():
                opened.restore(found)
                result = opened.built.run(opened.session, found.step, found.prefix)
                added = log.write(result)
            # Without the lock, because a callback may also evaluate.
            Output.current.record(added)
            done(result)
        # Not in a `finally`: an interrupt may break off a flush of the file, which then cannot be closed.
        log.close()


def _check_eval_dir(settings):
    """Raises a UsageError if a directory is not an eval_dir, or holds a run: TensorBoard would mix both curves."""
    path, folder = settings.eval_dir, look_at(settings)
    check_dir(path, '--eval_dir')
    if os.path.realpath(path) == os.path.realpath(folder.path):
        raise UsageError(f'--eval_dir={path} is {folder.given}; use another directory')
    found = glance(path, 'eval_dir')
    if found.checkpoints or found.files & {LIST, SETTINGS}:
        raise UsageError(f'--eval_dir={path} holds checkpoints or a run; use another directory')


def _in_turn(model, first, settings):
    """Yields the first readable checkpoint and then, unless `run_once`, each newer checkpoint as it appears."""
    found, last = first, None
    while True:
        if found:
            yield found
            if settings.run_once:
                return
            last, step = found.prefix, found.step
            found.values.clear()  # they take the memory of a whole checkpoint
            say('waiting', f'for a checkpoint after step {step}; checks every {settings.eval_interval_secs} s')
        else:
            time.sleep(settings.eval_interval_secs)
        found = model.newer(last)


class _Log:
    """Logs evaluations. Evaluations of a run on its own images are also written to an eval_dir."""

    def __init__(self, settings, model, is_written):
        self._eval_dir = eval_dir = settings.eval_dir
        self._per_class = settings.per_class
        # Training images are evaluated to find wrong labels; their curves are separate from the test images' curves.
        of_tests = settings.eval_data == 'test'
        self._lists = settings.per_class or not of_tests
        # The evaluation's settings, for every record.
        self._evaluation = dict(run=model.record.run_id, data=settings.eval_data, num_examples=settings.num_examples,
                                use_ema=model.use_ema)
        self._log = self._events = None
        if not is_written:
            self._evaluation['dataset'] = settings.dataset
            return
        make_dir(eval_dir, '--eval_dir')
        if {record.get('run') for record in metrics.read(eval_dir, metrics.EVAL)} - {None, model.record.run_id}:
            say('warning', f'--eval_dir={eval_dir} has evaluations of another run too, and TensorBoard would join '
                           'their curves; use another --eval_dir')
        self._events = Events(eval_dir, '' if of_tests else f'{settings.eval_data}/')
        self._events.add_hyperparameters(hyperparameters(model.record.settings))
        self._log = metrics.Log(eval_dir, {metrics.EVAL: self._events})

    def alone(self):
        """Returns a context that locks the eval_dir against concurrent evaluations."""
        if not self._log:
            return contextlib.nullcontext()
        return locks.locked(os.path.join(self._eval_dir, 'lock'), waiting=f'another evaluation in {self._eval_dir}')

    def write(self, result):
        """Prints and writes a result; returns the record."""
        say(datetime.datetime.now(), f'{result.line()}, step {result.step}')
        facts = {**result.counts, **self._evaluation}
        if result.confusion is not None:
            facts['largest_losses'] = result.largest_losses
            if self._per_class:
                if result.averaged_accuracy is not None:
                    say('', 'each class, without test-time averaging:')
                say_all(confusion.lines(result.confusion, result.classes))
            if self._lists:
                say_all(confusion.image_lines(result.largest_losses, 'the largest losses'))
        if not (self._log and self._events):
            return metrics.record_of(metrics.EVAL, result.step, result.figures, **facts)
        known = self._known(result)
        if not known:
            result_pictures.write(self._events, result)
        curves = {name: figure for name, figure in result.figures.items() if name not in known}
        return self._log.write(metrics.EVAL, result.step, result.figures, curves, ('step', *self._evaluation),
                               told=False, **facts)

    def close(self):
        if self._events:
            self._events.close()

    def _known(self, result):
        """Returns the names of figures that TensorBoard already has from an earlier evaluation with the same result.

        This program or the run itself made the earlier evaluation.
        """
        folder, name = os.path.split(os.path.realpath(self._eval_dir))
        folders = [self._eval_dir, *([folder] if name == EVALUATIONS else [])]
        figures = {name: metrics.rounded(value) for name, value in result.figures.items() if name in SHOWN}
        now = dict(figures, step=result.step, examples=result.examples, run=self._evaluation['run'],
                   data=self._evaluation['data'])
        of_run = dict(run=now['run'], data='test')  # the run's own evaluations do not record it
        return set().union(*(record for each in folders for record in metrics.read(each, metrics.EVAL)
                             if now.items() <= {**of_run, **record}.items()))
