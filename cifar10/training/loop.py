"""Training: the loop that takes the steps of a run, from settings to checkpoints in train_dir."""
import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.console import reader_may_leave, say
from cifar10.base.errors import reason
from cifar10.base.registry import NETWORKS, OPTIMIZERS
from cifar10.base.signals import Termination
from cifar10.data import records
from cifar10.evaluation.validation import Validation
from cifar10.parallel import determinism, gpus
from cifar10.parallel.devices import Devices
from cifar10.run import best, checkpoint, deletion, failures, metrics, sessions, starts, summaries, trust
from cifar10.run.async_workers import AsyncWorkers
from cifar10.run.curves import Curves
from cifar10.run.names import step_of
from cifar10.run.progress import Progress
from cifar10.run.rate import due
from cifar10.run.stragglers import Stragglers
from cifar10.run.trace import Trace
from cifar10.run.train_dir import TrainDir
from cifar10.settings.training import TrainSettings
from cifar10.training.plan import BEFORE_DATA, WITH_DATA, Plan, Start, local_devices
from cifar10.training.run import Run

_MOST_ATTEMPTS = 20  # to come from one checkpoint to the next, before a lost device counts as gone for good


class Ended(NamedTuple):
    """Where a run stands when `train` returns.

    Attributes:
      checkpoint: prefix of its newest checkpoint.
      step: that of the checkpoint.
      last_step: the step that the run was to end after; it is not reached if a signal came.
    """
    checkpoint: str
    step: int
    last_step: int


def train(settings: TrainSettings, termination: Termination | None = None, devices: Devices | None = None,
          before_session: Callable[[], None] | None = None) -> Ended:
    """Trains until `max_steps` or `epochs`, resuming the run in `train_dir` if there is one.

    Args:
      settings: of the run.
      termination: handles the signals that end the run after a step; or None.
      devices: the devices to train on; default: those of this machine that the settings ask for.
      before_session: function that is called before each session is made, or None.

    Returns:
      Where the run stands now.
    """
    start = prepared(settings, devices)
    directory = start.directory
    with directory.locked(), failures.plain_errors(directory):
        decide(start, WITH_DATA)
        plan = start.plan
        if plan.finished:
            checkpoint.tidy(directory, settings.reports.max_to_keep)
            if directory.stored():
                _best(plan, directory).tidy(plan.step)
            return Ended(plan.checkpoint, plan.step, plan.last_step)
        return _run(Run(plan), validation_of(plan), directory, termination, before_session)


def prepared(settings: TrainSettings, devices: Devices | None = None) -> Start:
    """Returns a start with its devices, which are claimed, and with its data; the arguments are those of `train`."""
    start = Start(settings, devices)
    decide(start, BEFORE_DATA)
    if devices is None:
        gpus.claim(start.devices.num_gpus)
    if settings.towers.deterministic:
        determinism.turn_on()
    start.data = records.of(settings.data)
    return start


def decide(start: Start, stages: Sequence[Callable]) -> None:
    """Decides, stage by stage, up to the first that raises a UsageError, and says what they return."""
    for stage in stages:
        for line in stage(start):
            say(line)


def validation_of(plan: Plan) -> Validation | None:
    """Returns what evaluates the run between two steps, on the devices of this process; None if nothing does."""
    settings = plan.settings
    if not settings.reports.eval_steps:
        return None
    data = records.of(settings.data, records.TEST)
    return Validation(plan.recipe, data, local_devices(settings.towers), settings.recipe.moving_averages)


class _Outputs(NamedTuple):
    """What a run writes to, however often its session is made again."""
    directory: TrainDir
    checkpoints: checkpoint.Checkpoints
    events: summaries.Events
    log: metrics.Metrics
    trace: Trace
    best: best.Best


def _run(run, validation, directory, termination, before_session):
    """Takes all steps of a run. When a device is lost, it goes on in a new session, from the newest checkpoint.

    TensorFlow may report the loss wherever it is used: when the session is made, variables are initialised or
    restored, in a step, an evaluation or a save, or in another thread. So all of that is within one `try`.
    """
    plan = run.plan
    with run.adding():
        outputs = _open_outputs(plan, directory)
    attempts = 0
    newest = None
    try:
        while True:
            try:
                if before_session:
                    before_session()
                with run.opened(outputs.checkpoints.restore()):
                    if attempts:
                        say(f'resumed    at step {run.step} of {plan.last_step}')
                    if termination:
                        termination.defer()
                    _loop(run, outputs, validation, termination)
                break
            except sessions.LOST as error:
                # Each time a checkpoint was saved since the last loss, the run has come further.
                attempts = attempts + 1 if outputs.checkpoints.last == newest else 1
                newest = outputs.checkpoints.last
                if attempts > _MOST_ATTEMPTS:
                    raise
                say(f'recovering {reason(error)}; making a new session')
    except Exception:
        last = outputs.checkpoints.last
        outputs.best.abandon(step_of(last) if last else -1)
        raise
    finally:
        outputs.events.close()
        if validation:
            validation.close()
    last = outputs.checkpoints.last
    ended = Ended(last, step_of(last), plan.last_step)
    with reader_may_leave():
        say(f"saved      {last}{'' if ended.step >= ended.last_step else '; start again to continue'}")
    return ended


def _loop(run, outputs, validation, termination):
    """Takes steps up to the last one, or until a signal; between them reports, evaluates and saves, each when due."""
    plan = run.plan
    mode, reports = plan.mode, plan.settings.reports
    directory, _, events, log, trace, _ = outputs
    # What tells of later steps goes: they are taken again.
    log.drop_after(run.step)
    events.drop_after(run.step)
    trace.drop_after(run.step)
    outputs.best.tidy(run.step)
    if run.step < plan.last_step:
        log.add(metrics.START, run.step,
                **starts.describe(plan.to_store(), plan.devices, plan.last_step, plan.warm_start))
    curves = Curves(events, reports.summary_steps, plan.examples_per_step, run.step)
    workers = AsyncWorkers(run.graph.async_train_ops)
    with _progress(plan, run.step, log) as progress:
        stragglers = Stragglers([plan.devices.place(k) for k in range(plan.devices.num_towers)], progress.say)
        with workers.stepping(run.session):
            while run.step < plan.last_step and not progress.output_closed and not (
                    termination and termination.requested):
                workers.raise_error()
                before = run.step
                summary = dict(summary=run.graph.summary) if curves.due(before + 1) else {}
                try:
                    results = trace.run(functools.partial(run.take, summary), before + 1)
                except tf.errors.OutOfRangeError:
                    break  # another tower's thread took the last batch
                # In this order: nothing of a diverged step is written, and no curve ends before its checkpoint.
                refuse_divergence(run.step, results['losses'], directory, mode.synchronous, mode.drifts)
                directory.refuse_another_folder()
                if mode.averages_after(run.step):
                    run.average()
                progress.report(run.step, results['figures'], results['seconds'])
                stragglers.report(results['seconds'])
                curves.report(run.step, results.get('summary'))
                trace.write_when_complete(run.step, progress.say)
                if run.step >= plan.last_step:
                    break  # its evaluation and its checkpoint are below
                if validation and due(reports.eval_steps, before, run.step):
                    _validate(run, outputs, validation, workers, progress)
                if due(reports.save_steps, before, run.step) or due(reports.keep_every, before, run.step):
                    with workers.paused():
                        _save(run, outputs, progress)
        # From here on no other thread takes steps.
        directory.refuse_another_folder()
        step = run.last_step_taken()
        if not mode.averages_after(step):
            run.average(scheduled=False)
        evaluated = metrics.last(directory.path, metrics.EVAL) or {}
        if validation and step >= plan.last_step and step != evaluated.get('step'):
            _validate(run, outputs, validation, workers, progress)
        _save(run, outputs, progress)


def _save(run, outputs, progress):
    """Writes a checkpoint, once all else that the run did up to this step is on the disk: no start does it again."""
    outputs.trace.write(progress.say)
    outputs.checkpoints.save(run.session)
    if outputs.best.publish():
        progress.say(f'best       {outputs.best.path}')


def _validate(run, outputs, validation, workers, progress):
    """Evaluates the run as it is now, and keeps it if it is the best so far and that is wanted."""
    kept = outputs.best if run.plan.settings.reports.keep_best else None
    with kept.candidate_of_run() if kept else contextlib.nullcontext() as candidate:
        with workers.paused():
            step, values = run.last_step_taken(), run.variables(validation.names)
            if kept:
                outputs.checkpoints.copy(run.session, candidate)
        result = validation.report(step, values, outputs.events, outputs.log, progress)
        if kept:
            kept.offer(candidate, step, **result.figures)


def _open_outputs(plan, directory):
    """Opens what the run of the current graph writes to. A start without a checkpoint deletes the earlier run first."""
    settings = plan.settings
    log = metrics.Metrics(directory.path)
    checkpoints = checkpoint.Checkpoints(
        directory, plan.checkpoint, settings.reports.max_to_keep, log, plan.mode.synchronous,
        settings.reports.keep_every)
    if not plan.checkpoint:
        deletion.restart(directory)
    text = directory.begin(plan.to_store())
    for registry, name in ((NETWORKS, settings.recipe.network), (OPTIMIZERS, settings.recipe.optimizer)):
        if registry.is_own(name):
            trust.remember(directory.stored().run, name)
    deletion.tidy(directory)
    events = summaries.Events(directory.path)
    events.begin(tf.get_default_graph(), plan.step)
    events.add(summaries.text('config', f'```\n{text}\n```'), plan.step)
    trace = Trace(*settings.reports.traced_steps, directory.path)
    return _Outputs(directory, checkpoints, events, log, trace, _best(plan, directory))


def _best(plan, directory):
    """Returns the Best of a run, whose settings are stored."""
    evaluation = dict(run=directory.stored().run, data=records.TEST, num_examples=None,
                      use_ema=plan.settings.recipe.moving_averages)
    return best.Best(directory.path, evaluation, is_locked=True)


def _progress(plan, step, log):
    """Returns the Progress of a run that goes on after a step."""
    constants = dict(devices=len(plan.devices.groups), towers=plan.devices.num_towers,
                     global_batch=plan.examples_per_step)
    return Progress(step, plan.last_step, plan.settings.reports.log_frequency, plan.examples_per_step, log, constants)


def refuse_divergence(step: int, losses: Sequence[float], directory: TrainDir, repeatable: bool = True,
                      drifts: bool = False) -> None:
    """Raises a RunError if any tower's loss in this step is not finite.

    Args:
      step: its number.
      losses: those of the towers.
      directory: of the run.
      repeatable: whether the step can be taken again, so that the error names the command that does it.
      drifts: whether the towers may also have drifted too far apart between two averages.
    """
    for k, loss in enumerate(losses):
        if not math.isfinite(loss):
            remedy = 'try a lower --learning_rate' + ', or fewer --local_steps' * drifts
            raise failures.diverged(directory, step, f'the loss of tower {k} is {loss}', repeatable, remedy)
