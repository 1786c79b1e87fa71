"""Training: prepare, build the graph, run it. From a TrainConfig to checkpoints in train_dir."""
import sys
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from cifar10 import preparation
from cifar10.config import TrainConfig
from cifar10.data import pipeline
from cifar10.networks import MOVING_STATISTICS, classifier
from cifar10.optim import averages
from cifar10.parallel import devices
from cifar10.parallel.session_config import session_config
from cifar10.parallel.towers import tower_loss
from cifar10.registry import PRECISIONS
from cifar10.run import checkpoint, hooks, loop, metrics, profile, summaries
from cifar10.run.async_workers import AsyncWorkersHook
from cifar10.run.train_dir import TrainDir, step_of
from cifar10.signals import Termination
from cifar10.trained import validation


def train(config: TrainConfig, termination: Termination | None = None, towers: devices.Devices | None = None,
          before_session: Callable[[], None] | None = None) -> None:
    """Trains until `config.max_steps` or `config.epochs`, resuming the run in `config.train_dir` if there is one.

    Args:
      config: the settings.
      termination: whose signals end the run in good order; or None.
      towers: the devices to train on; default: those of this machine that the config asks for.
      before_session: function to be called before each session is made, or None.

    Raises:
      UsageError: invalid configuration or input.
      RunError: the run failed after it had started; its newest checkpoint is whole.
    """
    local = preparation.claim_devices(config, towers)
    directory = TrainDir(config.train_dir)
    data = preparation.training_data(config, directory)
    with directory.locked(), checkpoint.named_in_errors(directory):
        plan = preparation.plan(config, directory, data, local)
        if plan.finished:
            checkpoint.tidy(directory, config.max_to_keep)
            return
        with tf.Graph().as_default(), tf.device(plan.towers.home):
            tf.set_random_seed(config.seed)
            training = Training(plan)
            with plan.mode.scope():
                _run(plan, training, directory, termination, before_session)


class Training:
    """The training graph, built in the current default graph.

    Attributes:
      train_step: int64 scalar, global_step after the update; fetching it takes a step.
      async_train_ops: the same for further threads, where the update mode has any.
      losses: float32 [towers], each tower's total loss.
      batches: (images, labels) of each tower, as `pipeline.train_batch` returns them.
      summary: string scalar, a serialised `tf.Summary` of the step.
      initialise: the local initialisation, which reads the data and starts the inputs where `examples_seen` is.
      examples_seen: int64 variable, the positions that were consumed.
      figures: float32 scalars of the step, by their names.
    """

    def __init__(self, plan: preparation.Plan):
        config, recipe, towers, mode = plan.config, plan.recipe, plan.towers, plan.mode
        self._examples_per_step, precision = plan.examples_per_step, PRECISIONS.load(config.precision)
        with tf.device('/cpu:0'):
            global_step = tf.train.get_or_create_global_step()
            self.examples_seen = tf.get_variable(
                checkpoint.EXAMPLES_SEEN, [], tf.int64, tf.zeros_initializer(), trainable=False)
            checkpoint.make_division(towers.num_towers, config.batch_size)
            rates = recipe.learning_rates(self.examples_seen)
            with tf.name_scope('input'):
                stop = self.examples_seen + (plan.last_step - global_step) * plan.examples_per_step
                source = pipeline.Source(
                    plan.data, towers.hosts, len(towers.groups), recipe.augmentation, config.batch_size, config.seed)
                next_batch, starts = source.batches(
                    self.examples_seen, stop, mode.synchronous, towers.towers if towers.on_gpus else None)
        self.batches = []

        def tower(k, scope):
            self.batches.append(next_batch(k))
            total_loss, scalars = tower_loss(scope, lambda: classifier.add_loss(
                recipe.inference, *self.batches[k], towers.parts[k], precision.dtype, config.label_smoothing))
            return dict(total_loss=total_loss, **scalars, **summaries.losses(scope))

        built = mode.build(tower, precision.optimizer(recipe.optimizer(*rates)), global_step,
                           tower_statistics=lambda scope: tf.get_collection(MOVING_STATISTICS, scope))
        self.losses = tf.stack([scalars['total_loss'] for scalars in built.towers], name='losses')
        activations = tf.get_collection(tf.GraphKeys.ACTIVATIONS, 'tower_0/')
        means = summaries.means(built)
        averaged_losses, losses_moved = summaries.averaged_losses(means)
        self.summary = summaries.build(built, {**means, **averaged_losses}, rates[0], self.batches[0][0], activations)
        moving_averages = averages.moving_averages(global_step)
        averaged = [variable for _, variable in built.gradients] if config.moving_averages else []
        train_ops = [tf.group(built.train_ops[0], losses_moved, name='summaries/step'), *built.train_ops[1:]]
        self.train_step, *self.async_train_ops = [
            self._after_update(train_op, moving_averages, averaged, global_step) for train_op in train_ops]
        self.figures = dict(loss=means['total_loss'], learning_rate=rates[0], accuracy=means['accuracy'])
        if 'staleness' in means:  # where towers update on their own
            self.figures['staleness'] = means['staleness']
        with tf.name_scope('initialise'):
            self.initialise = tf.group(tf.local_variables_initializer(), *starts)

    def _after_update(self, train_op, moving_averages, variables, global_step):
        """Counts the examples and moves the averages once the update is done, so that neither races it."""
        with tf.device('/cpu:0'), tf.name_scope('after_update'), tf.control_dependencies([train_op]):
            moved = [moving_averages.apply(variables)] if variables else []
            counted = self.examples_seen.assign_add(self._examples_per_step, read_value=False)
            with tf.control_dependencies([*moved, counted]):
                return tf.identity(global_step)


def _run(plan, training, directory, termination, before_session):
    """Runs the training graph until a hook stops it."""
    config, towers, last_step = plan.config, plan.towers, plan.last_step
    checkpoints = checkpoint.Checkpoints(
        directory, plan.start, tf.train.get_global_step(), training.examples_seen, config.max_to_keep)
    text = directory.begin(plan.settings, checkpoint.is_ours if config.restart else None)
    directory.tidy(checkpoint.is_ours)
    events = summaries.Events(directory.path)
    events.begin(tf.get_default_graph(), [training.train_step, *training.async_train_ops], plan.step)
    events.add(summaries.text('config', f'```\n{text}\n```'), plan.step)
    train_step, examples = training.train_step, plan.examples_per_step
    log, workers = metrics.Metrics(directory.path), AsyncWorkersHook(training.async_train_ops)
    progress = hooks.ProgressHook(
        train_step, training.figures, examples, config.log_frequency, last_step, sys.stdout, log,
        dict(devices=len(towers.groups), towers=towers.num_towers, global_batch=examples))
    # In this order: nothing of a diverged step is written, and no curve ends before its checkpoint.
    between_steps = [
        hooks.DivergenceHook(train_step, training.losses, directory), progress,
        hooks.SummaryHook(train_step, training.summary, examples, config.summary_steps, events),
        profile.ProfileHook(train_step, *config.traced, directory.trace_path(*config.traced)),
        workers,
        *validation.hooks(plan.validation, train_step, config.eval_steps, last_step, progress, events, log, workers),
        hooks.CheckpointHook(train_step, checkpoints, config.save_steps, last_step, workers),
        hooks.StopHook(train_step, last_step, termination)]
    # In a session over several processes TensorFlow fuses to operations that it has for float32 alone. What is fused
    # must not depend on the session, because it rounds differently.
    fuse = PRECISIONS.load(config.precision).dtype == tf.float32
    options = session_config(towers, config.log_device_placement, config.xla, fuse)
    scaffold = tf.train.Scaffold(
        init_fn=lambda scaffold, session: checkpoints.restore(session), local_init_op=training.initialise)
    try:
        loop.run(train_step, between_steps, scaffold, towers.target, options, before_session)
    finally:
        progress.close()
        events.close()
    left = '' if step_of(checkpoints.last) >= last_step else '; start again to continue'
    print(f'saved      {checkpoints.last}{left}')
