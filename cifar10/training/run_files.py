"""Defines the files of a run and the reporters that write them: log, evaluations, checkpoints."""
import contextlib
import datetime
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from cifar10.base.activity import OF_FIRST_STEP, doing
from cifar10.base.directories import CURVES, EVALUATIONS
from cifar10.run import checkpoints, failures, metrics
from cifar10.run.best import counting, is_better, summary
from cifar10.run.checkpoints import Saved
from cifar10.run.cost import EVALUATION, SAVING, STARTING, Cost
from cifar10.run.ended import ended
from cifar10.run.events import Events, Summaries
from cifar10.run.folder import Folder
from cifar10.run.progress import Progress, say
from cifar10.run.record import RunRecord
from cifar10.run.reporter import Reporter, due
from cifar10.run.takeover import TrainDir
from cifar10.settings.training import hyperparameters
from cifar10.training.run import Run
from cifar10.training.soundness import Soundness

if TYPE_CHECKING:
    from cifar10.evaluation.trained import ModelSession


class RunFiles:
    """The files of a run and its reporters, as a context that outlives each session.

    Args:
      run: the run, before its first session.
      restored: the restored checkpoint, or None; the first session drops its values.
      validation: has the run's `Evaluator` between steps; or None.
      began: `time.perf_counter` at the beginning of the start.
    """

    def __init__(self, run: Run, directory: TrainDir, folder: Folder, restored: Saved | None,
                 validation: 'ModelSession | None', record: RunRecord, began: float):
        self._directory = directory
        self._run = run
        self._validation = validation
        self._evaluated: list[dict] = []  # the records of the evaluations
        self._record = record
        self._slack = OF_FIRST_STEP  # for `doing`, of an evaluation
        plan, settings = run.plan, run.plan.settings
        self._data_files = plan.source.kept
        with run.adding():
            self._soundness = Soundness(run)
            self._run_id = directory.begin(
                record._replace(step=plan.step), folder.run_id if plan.checkpoint else None)
            checkpoints.remove_abandoned(folder)
            self._curves = {metrics.TRAIN: Events(os.path.join(directory.path, CURVES))}
            if validation:
                self._curves[metrics.EVAL] = Events(os.path.join(directory.path, EVALUATIONS))
            self._log = metrics.Log(directory.path, self._curves, directory.refuse_another_folder)
            self.checkpoints = checkpoints.Checkpoints(
                directory, restored, folder, settings.reports.max_to_keep, self._log)
            if not plan.checkpoint:  # else TensorBoard has it
                self._curves[metrics.TRAIN].add_graph(tf.get_default_graph())
        self._cost = Cost(began, plan.step, plan.examples_per_step, plan.source.is_sequential)
        found = hyperparameters(record.settings)
        self._curves[metrics.TRAIN].add_config(found, record.command(), plan.step)
        if validation:
            self._curves[metrics.EVAL].add_hyperparameters(found)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for events in self._curves.values():
            events.close()
        if self._validation:
            self._validation.session.close()

    @contextlib.contextmanager
    def begun(self) -> Iterator[list[Reporter]]:
        """Context with the run's reporters from the current step on, in order."""
        run, plan, reports = self._run, self._run.plan, self._run.plan.settings.reports
        self._log.drop_after(run.step)  # the run repeats the later steps
        self._evaluated = metrics.read(self._directory.path, metrics.EVAL)
        self.checkpoints.best = checkpoints.find_best(
            self._directory.path, self.checkpoints.best, self._evaluated, run.step,
            counting(plan.settings) if reports.keep_best else None)
        if run.step < plan.last_step:
            self._log.write(metrics.START, **self._record._replace(step=run.step).to_json(), run=self._run_id)
        self._soundness.begin()
        self._saved_at = time.monotonic()

        def facts(step):
            examples, count = plan.examples_at(step), plan.source.count
            return dict(examples=examples, epoch=examples / count if count else None, devices=len(plan.devices.groups),
                        towers=plan.devices.num_towers, global_batch=plan.examples_per_step)
        with self._cost.of(STARTING), Progress(
                run.step, plan.last_step, reports.log_frequency, plan.examples_per_step, self._log, facts,
                self._cost.seconds_of_steps, plan.mode.synchronous and not plan.mode.uses_strategy) as progress:
            yield self._reporters(progress)
            say('cost', self._cost.summary())

    def _reporters(self, progress):
        run, plan, reports = self._run, self._run.plan, self._run.plan.settings.reports
        reporters = [
            progress,
            Summaries(self._curves[metrics.TRAIN], reports.summary_steps, plan.source.classes, run.graph.summary,
                      run.graph.inputs)]
        if self._validation:
            is_whole = run.step < plan.last_step  # else the final checkpoint exists, after an evaluation

            def evaluate():
                progress.say_newest()  # its time is before the evaluation's
                self._evaluate(self._validation)
            reporters.append(_NowAndThen(evaluate, lambda step: due(reports.eval_steps, step), plan.last_step,
                                         lambda step: is_whole and step >= plan.last_step))
        # Last, with all other work up to this step on disk: no start repeats it.
        reporters.append(_NowAndThen(self._save, self._is_save_due, plan.last_step))
        return [*reporters, self._cost]

    def ended(self, step: int) -> str | None:
        """Returns the setting that has ended the run by a step, or None."""
        plan = self._run.plan
        return ended(self._evaluated, plan.settings, step, plan.last_step)

    def refuse(self, step: int, losses: Sequence[float] = (), first: int = 0) -> None:
        """Raises a RunError if a tower's loss in a step is not finite, or the train_dir has been replaced."""
        self._directory.refuse_another_folder()
        failures.refuse_divergence(step, losses, self._directory.path, self._run.plan.mode.drifts, first)

    def _save(self, best=None):
        with self._cost.of(SAVING):
            self._soundness.check()
            self._directory.keep(*self._data_files)
            by_clock = not best and not due(self._run.plan.settings.reports.save_steps, self._run.step)
            self.checkpoints.save(self._run.session, by_clock, best)
        self._saved_at = time.monotonic()

    def _is_save_due(self, step):
        """Returns whether to save after a step: by its number, or by the clock (in `local` after averages)."""
        run, reports = self._run, self._run.plan.settings.reports
        is_late = 0 < reports.save_minutes * 60 <= time.monotonic() - self._saved_at
        return due(reports.save_steps, step) or is_late and (run.averages_after(step) or not run.plan.mode.drifts)

    def _evaluate(self, validation):
        """Evaluates the current model, keeps it if it is the best, and reports whether it ends the run."""
        run, step = self._run, self._run.step
        with self._cost.of(EVALUATION):
            self._soundness.check()  # prevents records and best checkpoints of wrong values
            values = run.variables(validation.names_in(run.saved).values())
            with doing('evaluation', self._slack):
                validation.load(values)
                result = validation.built.run(validation.session, step)
            self._slack = 1
            from cifar10.evaluation import result_pictures
            result_pictures.write(self._curves[metrics.EVAL], result)
            record = self._log.write(metrics.EVAL, step, result.figures, **result.counts)
            self._evaluated.append(record)
            say(datetime.datetime.now(), f'{result.line()}, step {step}')
            figure = counting(run.plan.settings)
            if run.plan.settings.reports.keep_best and is_better(record, self.checkpoints.best, figure):
                self._save(record)
                say('best', summary(record, figure))
            if step < run.plan.last_step and (rule := self.ended(step)):
                say('ended', f'by --{rule}={getattr(run.plan.settings.run, rule)}')


class _NowAndThen(Reporter):
    """Calls `act` after due steps, before a later step begins, and at the end; at most once per step."""

    def __init__(self, act, is_due, last_step, is_due_at_end=lambda step: True):
        self._act = act
        self._is_due = is_due
        self._last_step = last_step
        self._awaited = None  # `act` is due after this step
        self._acted = None  # the step of the last `act`
        self._is_due_at_end = is_due_at_end

    def awaits(self, step):
        if self._is_due(step):
            self._awaited = step
        return step == self._awaited

    def after_step(self, step, results):
        if step < self._last_step and step == self._awaited:
            self._act()
            self._acted = step

    def at_end(self, step):
        if self._is_due_at_end(step) and self._acted != step:
            self._act()
