"""Training: the graph of a step, and the loop that runs it. From settings to checkpoints in train_dir."""
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base import own
from cifar10.base.console import reader_may_leave, say
from cifar10.base.errors import UsageError, reason
from cifar10.base.registry import NETWORKS, OPTIMIZERS, PRECISIONS
from cifar10.base.signals import Termination
from cifar10.data import pipeline, records
from cifar10.evaluation.validation import Validation
from cifar10.model import MOVING_STATISTICS, averages, classifier
from cifar10.model.network_draws import at_position
from cifar10.parallel import determinism, gpus
from cifar10.parallel.devices import Devices
from cifar10.parallel.session_config import refuse_absent, session_config
from cifar10.parallel.towers import tower_loss
from cifar10.parallel.update import Step
from cifar10.run import (
    best,
    checkpoint,
    deletion,
    failures,
    metrics,
    saved,
    sessions,
    starts,
    summaries,
    trust,
    warm_start,
)
from cifar10.run.async_workers import AsyncWorkers
from cifar10.run.curves import Curves
from cifar10.run.names import step_of
from cifar10.run.progress import Progress
from cifar10.run.rate import due
from cifar10.run.stragglers import Stragglers
from cifar10.run.trace import Trace
from cifar10.run.train_dir import TrainDir
from cifar10.settings.training import TowerSettings, TrainSettings
from cifar10.training.plan import BEFORE_DATA, WITH_DATA, Plan, Start, local_devices

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
        learnt = {} if plan.checkpoint else plan.recipe.learn(plan.data)
        validation = validation_of(plan)
        with own.graph(settings.run.seed), tf.device(plan.devices.home):
            graph = build(plan, learnt)
            with plan.mode.scope():
                return _run(plan, graph, validation, directory, termination, before_session)


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


class TrainingGraph(NamedTuple):
    """What `build` makes in the current graph.

    Attributes:
      train_step: int64 scalar, global_step after the update; fetching it takes a step.
      async_train_ops: the same for further threads, where the update mode has any.
      losses: float32 [towers], each tower's total loss.
      tower_seconds: float32 [towers], the time that each tower took; [0] where it is not measured.
      figures: float32 scalars of the step, by their names.
      summary: string scalar, a serialised `tf.Summary` of the step; None in a run that writes none.
      batches: (images, labels) of each tower, as `pipeline.train_batch` returns them.
      step: the towers and their update, as the update mode built them.
      average, equalise: the operations of the mode's `Average`, with which the moving averages move; None where the
        towers' variables are equal after each step.
      global_step, examples_seen: int64 variables, the updates and the positions so far.
      initialise: gives variables their first values; a restore may follow.
      initial_values: what `initialise` must be fed.
      start_inputs: reads the data and starts the inputs at position `examples_seen`; to be run after `initialise` and
        any restore.
    """
    train_step: tf.Tensor
    async_train_ops: Sequence[tf.Tensor]
    losses: tf.Tensor
    tower_seconds: tf.Tensor
    figures: dict[str, tf.Tensor]
    summary: tf.Tensor | None
    batches: list
    step: Step
    average: tf.Operation | None
    equalise: tf.Operation | None
    global_step: tf.Variable
    examples_seen: tf.Variable
    initialise: tf.Operation
    initial_values: dict[tf.Tensor, np.ndarray]
    start_inputs: tf.Operation

    @property
    def fetches(self) -> dict[str, Any]:
        """What is fetched in every step: its number, the losses, the figures, and the towers' seconds."""
        return dict(step=self.train_step, losses=self.losses, figures=self.figures, seconds=self.tower_seconds)


def build(plan: Plan, learnt: Mapping[str, Any]) -> TrainingGraph:
    """Builds the training graph in the current default graph: input, towers, update, and what is reported of them.

    Args:
      plan: of the run.
      learnt: what `plan.recipe.learn` returned; nothing for a run that is resumed.
    """
    recipe, devices, mode = plan.recipe, plan.devices, plan.mode
    seed = plan.settings.run.seed
    batch_size = plan.settings.towers.batch_size
    precision = PRECISIONS.load(plan.settings.towers.precision)
    with tf.device('/cpu:0'):
        global_step = tf.train.get_or_create_global_step()
        examples_seen = tf.get_variable(
            saved.EXAMPLES_SEEN, [], tf.int64, tf.zeros_initializer(), trainable=False)
        checkpoint.make_division(devices.num_towers, batch_size)
        rates = recipe.learning_rates(examples_seen)
        with tf.name_scope('input'):
            stop = examples_seen + (plan.last_step - global_step) * plan.examples_per_step
            source = pipeline.Source(
                plan.data, devices.hosts, len(devices.groups), recipe.augmentation, batch_size, seed)
            next_batch, starts = source.batches(
                examples_seen, stop, mode.synchronous, devices.tower_devices if devices.on_gpus else None)
    batches = []

    def network(images, training):
        return recipe.inference(images, training, **learnt)

    def tower(k, scope):
        batches.append(next_batch(k))
        images, labels = batches[k]
        with recipe.divided(devices.parts[k], mode.gate(k)), at_position(seed, examples_seen, k * batch_size):
            total_loss, scalars = tower_loss(scope, lambda: classifier.add_loss(
                network, images, labels, precision.dtype, plan.settings.recipe.label_smoothing))
            return dict(total_loss=total_loss, **scalars, **summaries.losses(scope))

    step = mode.build(tower, precision.optimizer(recipe.optimizer(*rates)), global_step,
                      tower_statistics=lambda scope: tf.get_collection(MOVING_STATISTICS, scope),
                      tower_inputs=batches.__getitem__ if can_time(plan.settings.towers) else None,
                      # So that those of frozen weights are left out.
                      gate_gradients=getattr(tf.train.Optimizer, 'GATE_NONE' if recipe.freezes else 'GATE_OP'))
    with tf.device('/cpu:0'):
        losses = tf.stack([scalars['total_loss'] for scalars in step.scalars], name='losses')
        with tf.name_scope('turns/'):
            tower_seconds = tf.stack(step.seconds, name='seconds') if step.seconds else tf.zeros([0])
    activations = tf.get_collection(tf.GraphKeys.ACTIVATIONS, 'tower_0/')
    means = summaries.means(step)
    averaged_losses, losses_moved = summaries.averaged_losses(means)
    summary = None
    if plan.settings.reports.summary_steps:
        summary = summaries.build(step, {**means, **averaged_losses}, rates[0], batches[0][0], activations)
    moving_averages = averages.moving_averages(global_step, step.average.steps if step.average else None)
    averaged = [variable for _, variable in step.gradients] if plan.settings.recipe.moving_averages else []

    def after_update(train_op):
        # Once the update is done, so that neither races it.
        with tf.device('/cpu:0'), tf.name_scope('after_update'), tf.control_dependencies([train_op]):
            moved = [averages.move(moving_averages, averaged)] if averaged and not step.average else []
            counted = examples_seen.assign_add(plan.examples_per_step, read_value=False)
            with tf.control_dependencies([*moved, counted]):
                return tf.identity(global_step)

    train_ops = [tf.group(step.train_ops[0], losses_moved, name='summaries/step'), *step.train_ops[1:]]
    train_step, *async_train_ops = [after_update(train_op) for train_op in train_ops]

    def after_average(operation):
        with tf.device('/cpu:0'), tf.name_scope('after_average'), tf.control_dependencies([operation]):
            return averages.move(moving_averages, averaged)

    average = after_average(step.average.scheduled) if step.average else None
    equalise = after_average(step.average.equalise) if step.average else None
    figures = dict(loss=means['total_loss'], learning_rate=rates[0], accuracy=means['accuracy'])
    if 'staleness' in means:  # where towers update on their own
        figures['staleness'] = means['staleness']
    with tf.name_scope('initialise'), mode.scope():
        initialise, initial_values = warm_start.initialise(plan.warm_start.values if plan.warm_start else {})
        start_inputs = tf.group(tf.local_variables_initializer(), *starts)
    return TrainingGraph(train_step, async_train_ops, losses, tower_seconds, figures, summary, batches, step,
                         average, equalise, global_step, examples_seen, initialise, initial_values, start_inputs)


def can_time(towers: TowerSettings) -> bool:
    """Returns whether TensorFlow may read a clock in a step: where operations must be deterministic, it refuses to."""
    return not (towers.deterministic or determinism.is_on())


def refuse_without_clock(towers: TowerSettings) -> None:
    """Raises a UsageError if steps cannot be timed, which `--explain` does."""
    if not can_time(towers):
        raise UsageError('--explain reads clocks, which TF_DETERMINISTIC_OPS=1 forbids; unset it')


class _Outputs(NamedTuple):
    """What a run writes to, however often its session is made again."""
    directory: TrainDir
    checkpoints: checkpoint.Checkpoints
    events: summaries.Events
    log: metrics.Metrics
    trace: Trace
    best: best.Best


def _run(plan, graph, validation, directory, termination, before_session):
    """Takes all steps of a run. When a device is lost, it goes on in a new session, from the newest checkpoint.

    TensorFlow may report the loss wherever it is used: when the session is made, variables are initialised or
    restored, in a step, an evaluation or a save, or in another thread. So all of that is within one `try`.
    """
    outputs = _open_outputs(plan, graph, directory)
    reads = [graph.global_step, validation.reads()] if validation else None
    attempts = 0
    newest = None
    tf.get_default_graph().finalize()
    try:
        while True:
            try:
                if before_session:
                    before_session()
                with begun(plan, graph, outputs.checkpoints) as session:
                    if attempts:
                        say(f'resumed    at step {session.run(graph.global_step)} of {plan.last_step}')
                    if termination:
                        termination.defer()
                    _loop(session, plan, graph, outputs, validation, reads, termination)
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


@contextlib.contextmanager
def begun(plan: Plan, graph: TrainingGraph, checkpoints: checkpoint.Checkpoints) -> Iterator[tf.Session]:
    """Context with a session in which the next run of `graph.train_step` takes the step after the newest checkpoint."""
    with sessions.opened(plan.devices.target, session_options(plan)) as session:
        refuse_absent(session, plan.devices)
        session.run(graph.initialise, graph.initial_values)
        checkpoints.restore(session)
        session.run(graph.start_inputs)
        if graph.step.average:
            session.run(graph.step.average.go_on)  # the schedule may be another one than that of the last average
        yield session


def _loop(session, plan, graph, outputs, validation, reads, termination):
    """Takes steps up to the last one, or until a signal; between them reports, evaluates and saves, each when due."""
    reports = plan.settings.reports
    directory, _, events, log, trace, _ = outputs
    step = int(session.run(graph.global_step))
    # What tells of later steps goes: they are taken again.
    log.drop_after(step)
    events.drop_after(step)
    trace.drop_after(step)
    outputs.best.tidy(step)
    if step < plan.last_step:
        log.add(metrics.START, step, **starts.describe(plan.to_store(), plan.devices, plan.last_step, plan.warm_start))
    curves = Curves(events, reports.summary_steps, plan.examples_per_step, step)
    workers = AsyncWorkers(graph.async_train_ops)
    with _progress(plan, step, log) as progress:
        stragglers = Stragglers([plan.devices.place(k) for k in range(plan.devices.num_towers)], progress.say)
        with workers.stepping(session):
            while step < plan.last_step and not progress.output_closed and not (termination and termination.requested):
                workers.raise_error()
                before = step
                if plan.mode.averages_after(step):
                    session.run(graph.step.average.go_on)
                summary = dict(summary=graph.summary) if curves.due(step + 1) else {}
                try:
                    results = trace.run(session, dict(graph.fetches, **summary), step + 1)
                except tf.errors.OutOfRangeError:
                    break  # another tower's thread took the last batch
                step = int(results['step'])
                # In this order: nothing of a diverged step is written, and no curve ends before its checkpoint.
                refuse_divergence(step, results['losses'], directory, plan.mode.synchronous, plan.mode.drifts)
                directory.refuse_another_folder()
                if plan.mode.averages_after(step):
                    session.run(graph.average)
                progress.report(step, results['figures'], results['seconds'])
                stragglers.report(results['seconds'])
                curves.report(step, results.get('summary'))
                trace.write_when_complete(step, progress.say)
                if step >= plan.last_step:
                    break  # its evaluation and its checkpoint are below
                if validation and due(reports.eval_steps, before, step):
                    _validate(session, plan, outputs, validation, reads, workers, progress)
                if due(reports.save_steps, before, step) or due(reports.keep_every, before, step):
                    with workers.paused():
                        _save(session, outputs, progress)
        # From here on no other thread takes steps.
        directory.refuse_another_folder()
        step = int(session.run(graph.global_step))
        if plan.mode.drifts and not plan.mode.averages_after(step):
            session.run(graph.equalise)
        evaluated = metrics.last(directory.path, metrics.EVAL) or {}
        if validation and step >= plan.last_step and step != evaluated.get('step'):
            _validate(session, plan, outputs, validation, reads, workers, progress)
        _save(session, outputs, progress)


def _save(session, outputs, progress):
    """Writes a checkpoint, once all else that the run did up to this step is on the disk: no start does it again."""
    outputs.trace.write(progress.say)
    outputs.checkpoints.save(session)
    if outputs.best.publish():
        progress.say(f'best       {outputs.best.path}')


def _validate(session, plan, outputs, validation, reads, workers, progress):
    """Evaluates the run as it is now, and keeps it if it is the best so far and that is wanted."""
    kept = outputs.best if plan.settings.reports.keep_best else None
    with kept.candidate_of_run() if kept else contextlib.nullcontext() as candidate:
        with workers.paused():
            step, values = session.run(reads)
            if kept:
                outputs.checkpoints.copy(session, candidate)
        result = validation.report(step, values, outputs.events, outputs.log, progress)
        if kept:
            kept.offer(candidate, int(step), **result.figures)


def _open_outputs(plan, graph, directory):
    """Opens what the run writes to. A start that goes on from no checkpoint deletes the earlier run first."""
    settings = plan.settings
    log = metrics.Metrics(directory.path)
    checkpoints = checkpoint.Checkpoints(
        directory, plan.checkpoint, graph.global_step, graph.examples_seen, settings.reports.max_to_keep, log,
        plan.mode.synchronous, settings.reports.keep_every)
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


def session_options(plan: Plan) -> tf.ConfigProto:
    """Returns the configuration of a session that takes the steps of a run."""
    towers = plan.settings.towers
    # In a session over several processes, fused operations exist for float32 only. What is fused must not depend on
    # the session, because fused operations round differently.
    fuse = PRECISIONS.load(towers.precision).dtype == tf.float32
    # TensorFlow reorders a product with a constant only where its factors are on one device, so it must not either.
    return session_config(plan.devices, plan.settings.reports.log_device_placement, towers.xla, fuse, fold=False)


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
