"""The training graph and the loop: from a TrainConfig to checkpoints in train_dir.

Puts the other modules together; the only one that knows both the data and the update modes.
"""
import os
import sys

import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10 import (
    checkpoint,
    devices,
    hooks,
    inputs,
    modes,
    networks,
    precision,
    profile,
    records,
    run_dir,
    schedule,
    summaries,
)
from cifar10.console import RunError, UsageError, reason
from cifar10.towers import tower_loss


def train(config, termination=None, towers=None, before_session=None):
    """Trains until `config.max_steps`, resuming the run in `config.train_dir` if there is one.

    Args:
      config: a `config.TrainConfig`.
      termination: a `console.Termination`, whose signals end the run in good order; or None.
      towers: the `devices.Devices` to train on; default: those of this machine that the config asks for.
      before_session: function to be called before each session is made, or None.

    Raises:
      UsageError: something the config asks for cannot be.
      RunError: the run failed under way; its newest checkpoint is whole.
    """
    if towers is None:
        towers = devices.choose(config.num_gpus, config.tower_device, config.gpus_per_tower)
        devices.claim(towers)
    print('towers     %s' % towers)
    if config.xla and not towers.on_gpus:
        raise UsageError('--xla compiles for GPUs, and the towers are CPU devices; leave it out')
    if precision.is_emulated(config.precision, not towers.on_gpus):
        print('warning: this CPU has no %s instructions, so --precision=%s is emulated and slow'
              % (config.precision, config.precision))
    data = records.find(config.dataset, config.data_dir)
    run = run_dir.RunDir(config)
    try:
        step = _resumed_step(config)
        update = modes.MODES[config.variable_update](towers.towers, towers.servers)
        _describe(config, data, update.batches * config.batch_size, step)
        if step >= config.max_steps:
            print('done       at step %d the run has its --max_steps=%d already; give more to go on'
                  % (step, config.max_steps))
            return
        if config.deterministic:
            tf2.config.experimental.enable_op_determinism()
        with tf.Graph().as_default(), tf.device(towers.home):
            tf.set_random_seed(config.seed)
            training = Training(config, data, towers, update)
            with update.scope():
                _loop(config, training, run, step, towers, termination, before_session)
    except tf.errors.OpError as error:
        raise RunError('%s; %s' % (reason(error), checkpoint.remainder(config.train_dir))) from error
    finally:
        run.close()


def _resumed_step(config):
    prefix = checkpoint.newest(config.train_dir)
    if prefix is None and run_dir.checkpoints(config.train_dir):
        raise UsageError('no checkpoint in --train_dir=%s can be read; use another --train_dir, or --restart to '
                         'delete that run' % config.train_dir)
    return checkpoint.saved_step(prefix) if prefix else 0


def _describe(config, data, examples_per_step, step):
    """Prints what a person wants to know before the first step."""
    print('update     %s' % config.variable_update)
    print('data       %s' % data)
    print('batch      %d a tower, %d a step; %.1f steps an epoch' % (
        config.batch_size, examples_per_step, data.count / examples_per_step))
    print('rate       %g, x%g every %d epochs = %d steps of this run' % (
        schedule.INITIAL_RATE, schedule.DECAY_FACTOR, schedule.DECAY_EPOCHS,
        schedule.decay_steps(data.count, examples_per_step)))
    print('run        %s, %s %d' % (
        config.train_dir, 'resumed at step %d of' % step if step else 'new, to step', config.max_steps))
    print('watch      tensorboard --logdir %s' % os.path.abspath(config.train_dir))


class Training:
    """The training graph, built in the current default graph.

    Attributes:
      step: int64 scalar, global_step after the update; fetching it takes a step.
      more_steps: the same for further threads, where the update mode has any.
      examples_per_step: int.
      losses: float32 [towers], each tower's total loss.
      batches: (images, labels) of each tower, as `inputs.train_batch` returns them.
      summary: string scalar, a serialised `tf.Summary` of the step.
      initialise: the local initialisation, which reads the data, starts the inputs where
        `examples_seen` is and lets the update mode do what follows a restore.
      examples_seen: int64 variable, the positions that were consumed.
    """

    def __init__(self, config, data, towers, update):
        self.examples_per_step = update.batches * config.batch_size
        with tf.device('/cpu:0'):
            global_step = tf.train.get_or_create_global_step()
            self.examples_seen = tf.get_variable('examples_seen', [], tf.int64, tf.zeros_initializer(), trainable=False)
            rate = schedule.learning_rate(self.examples_seen, data.count)
            self.batches = self._inputs(config, data, towers, update, global_step)
        inference, compute_type = networks.get(config.network), precision.TYPES[config.precision]
        step = update.build(
            lambda k, scope: classifier(scope, inference, *self.batches[k], towers.parts[k], compute_type),
            precision.optimizer(config.precision, lambda: tf.train.GradientDescentOptimizer(rate)), global_step)
        self.losses = tf.stack([scalars['total_loss'] for scalars in step.towers], name='losses')
        activations = tf.get_collection(tf.GraphKeys.ACTIVATIONS, 'tower_0/')
        self.summary = summaries.build(step, rate, self.batches[0][0], activations)
        averages = schedule.moving_averages(global_step)
        trained = [variable for _, variable in step.gradients]
        self.step, *self.more_steps = [self._after_update(op, averages, trained, global_step) for op in step.train_ops]
        with tf.name_scope('initialise'), tf.control_dependencies([tf.local_variables_initializer()]):
            self.initialise = tf.group(update.after_restore(), *self._starts)

    def _inputs(self, config, data, towers, update, global_step):
        """Returns each tower's batch; the k-th of a step's batches is k batches ahead of `examples_seen`."""
        with tf.name_scope('input'):
            stop = self.examples_seen + (config.max_steps - global_step) * self.examples_per_step
            source = inputs.Source(data, towers.hosts, config.batch_size, config.seed)
            if update.batches == 1 < len(towers.hosts):  # towers that do not step together take turns
                batches, self._starts = source.take_turns(self.examples_seen, stop)
            else:
                batches, self._starts = source.side_by_side(
                    self.examples_seen, stop, towers.towers if towers.on_gpus else None)
        return batches

    def _after_update(self, train_op, averages, variables, global_step):
        """Counts the examples and moves the averages once the update is done, so that neither races it."""
        with tf.device('/cpu:0'), tf.name_scope('after_update'), tf.control_dependencies([train_op]):
            followed = averages.apply(variables)
            counted = self.examples_seen.assign_add(self.examples_per_step, read_value=False)
            with tf.control_dependencies([followed, counted]):
                return tf.identity(global_step)


def classifier(scope, inference, images, labels, parts=('',), compute_type=tf.float32):
    """Builds one tower's network and loss.

    Args:
      scope: the tower's name scope.
      inference: function (images, devices) -> logits, float32 [n, classes].
      images: float32 [n, height, width, 3].
      labels: int32 [n].
      parts: names of the tower's devices.
      compute_type: the type that the network computes in.

    Returns:
      A dict of float32 scalars: 'total_loss' = 'cross_entropy' + 'weight_loss', and
      'train_accuracy' of this batch.
    """
    def network():
        logits = inference(tf.cast(images, compute_type), parts)
        cross_entropy = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), name='cross_entropy')
        tf.add_to_collection(tf.GraphKeys.LOSSES, cross_entropy)
        return logits, cross_entropy

    total_loss, (logits, cross_entropy) = tower_loss(scope, network)
    correct = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)
    return dict(total_loss=total_loss, cross_entropy=cross_entropy, weight_loss=total_loss - cross_entropy,
                train_accuracy=tf.reduce_mean(tf.cast(correct, tf.float32)))


def _loop(config, training, run, first_step, towers, termination, before_session):
    """Runs the training graph until a hook stops it."""
    graph = tf.get_default_graph()
    checkpoints = checkpoint.Checkpoints(
        config.train_dir, tf.train.get_global_step(), training.examples_seen, config.max_to_keep)
    checkpoints.check()
    run.write_config(config)
    events = summaries.Events(config.train_dir)
    events.begin(graph, first_step)
    events.add(summaries.text('config', '```\n%s\n```' % run_dir.describe(config)), first_step)
    step, examples = training.step, training.examples_per_step
    drivers = hooks.DriverHook(training.more_steps)
    loss = tf.reduce_mean(training.losses, name='loss')
    progress = hooks.ProgressHook(step, loss, examples, config.log_frequency, config.max_steps, sys.stdout)
    # In this order: nothing of a diverged step is written, and no curve ends before its checkpoint.
    between_steps = [
        hooks.DivergenceHook(step, training.losses, config.train_dir), progress,
        hooks.SummaryHook(step, training.summary, examples, config.summary_steps, events),
        profile.ProfileHook(step, *config.traced, config.train_dir),
        drivers, hooks.CheckpointHook(step, checkpoints, config.save_steps, config.max_steps, drivers),
        hooks.StopHook(step, config.max_steps, termination)]
    # In a session over several processes TensorFlow fuses to operations that it has for float32 alone.
    fuse = not towers.target or config.precision == 'fp32'
    session_config = devices.session_config(towers, config.log_device_placement, config.xla, fuse)
    scaffold = tf.train.Scaffold(
        init_fn=lambda scaffold, session: checkpoints.restore(session),
        local_init_op=training.initialise)
    try:
        creator = hooks.SessionCreator(scaffold, towers.target, session_config, before_session)
        with tf.train.MonitoredSession(creator, between_steps) as session:
            while not session.should_stop():
                session.run(step)
    finally:
        progress.close()
        events.close()
    done = run_dir.step_of(checkpoints.last) >= config.max_steps
    print('saved      %s%s' % (checkpoints.last, '' if done else '; start again to go on'))
