"""The training graph and the loop: from a TrainConfig to checkpoints in train_dir.

Puts the other modules together; the only one that knows both the data and the update modes.
"""
import os
import sys

import tensorflow.compat.v1 as tf

from cifar10 import checkpoint, devices, hooks, inputs, networks, records, run_dir, schedule, summaries, updates
from cifar10.console import RunError, reason
from cifar10.towers import tower_loss


def train(config, termination=None):
    """Trains until `config.max_steps`, resuming the run in `config.train_dir` if there is one.

    Args:
      config: a `config.TrainConfig`.
      termination: a `console.Termination`, whose signals end the run in good order; or None.

    Raises:
      UsageError: something the config asks for cannot be.
      RunError: the run failed under way; its newest checkpoint is whole.
    """
    towers = devices.choose(config.num_gpus, config.tower_device)
    print('towers     %s' % towers)
    data = records.find(config.dataset, config.data_dir)
    run = run_dir.RunDir(config)
    try:
        step = _resumed_step(config)
        _describe(config, data, step)
        if step >= config.max_steps:
            print('done       the run has its --max_steps=%d already' % config.max_steps)
            return
        run.write_config(config)
        if config.deterministic:
            tf.config.experimental.enable_op_determinism()
        with tf.Graph().as_default():
            tf.set_random_seed(config.seed)
            _loop(config, Training(config, data, towers), step, towers, termination)
    except tf.errors.OpError as error:
        raise RunError('%s; %s' % (reason(error), checkpoint.remainder(config.train_dir))) from error
    finally:
        run.close()


def _resumed_step(config):
    prefix = checkpoint.newest(config.train_dir)
    return checkpoint.saved_step(prefix) if prefix else 0


def _describe(config, data, step):
    """Prints what a person wants to know before the first step."""
    print('data       %s' % data)
    print('batch      %d a tower, %d in all; %.1f steps an epoch' % (
        config.batch_size, config.global_batch, data.count / config.global_batch))
    print('rate       %g, x%g every %d epochs = %d steps of this run' % (
        schedule.INITIAL_RATE, schedule.DECAY_FACTOR, schedule.DECAY_EPOCHS,
        schedule.decay_steps(data.count, config.global_batch)))
    print('run        %s, %s %d' % (
        config.train_dir, 'resumed at step %d of' % step if step else 'new, to step', config.max_steps))
    print('watch      tensorboard --logdir %s' % os.path.abspath(config.train_dir))


class Training:
    """The training graph, built in the current default graph.

    Attributes:
      step: int64 scalar, global_step after the update; fetching it takes a step.
      losses: float32 [towers], each tower's total loss.
      batches: (images, labels) of each tower, as `inputs.train_batch` returns them.
      summary: string scalar, a serialised `tf.Summary` of the step.
      initialise: the local initialisation, which reads the data and starts the inputs where
        `examples_seen` is; wants to run after a restore.
      examples_seen: int64 variable, the positions that were consumed.
    """

    def __init__(self, config, data, towers):
        with tf.device('/cpu:0'):
            global_step = tf.train.get_or_create_global_step()
            self.examples_seen = tf.get_variable('examples_seen', [], tf.int64, tf.zeros_initializer(), trainable=False)
            rate = schedule.learning_rate(self.examples_seen, data.count)
            self.batches = self._inputs(config, data)
        inference = networks.get(config.network)
        update = updates.MODES[config.variable_update](towers.towers)
        step = update.build(lambda k, scope: classifier(scope, inference, *self.batches[k]),
                            lambda: tf.train.GradientDescentOptimizer(rate), global_step)
        self.losses = tf.stack([scalars['total_loss'] for scalars in step.towers], name='losses')
        activations = tf.get_collection(tf.GraphKeys.ACTIVATIONS, 'tower_0/')
        self.summary = summaries.build(step, rate, self.batches[0][0], activations)
        self.step = self._after_update(config, step.train_ops, global_step)

    def _inputs(self, config, data):
        """Builds a stream of batches a tower; tower k's are k batches ahead of `examples_seen`."""
        with tf.name_scope('input'):
            memory, read = inputs.load(data)
            iterators, starts = zip(*[
                inputs.train_batches(memory, read, self.examples_seen + k * config.batch_size, config.batch_size,
                                     config.global_batch, config.seed) for k in range(config.num_gpus)])
            self.initialise = tf.group(starts)
            return [iterator.get_next() for iterator in iterators]

    def _after_update(self, config, train_ops, global_step):
        """Counts the examples and moves the averages once the update is done, so that neither races it."""
        with tf.device('/cpu:0'), tf.name_scope('after_update'), tf.control_dependencies(train_ops):
            averages = schedule.moving_averages(global_step)
            followed = averages.apply(tf.trainable_variables())
            counted = self.examples_seen.assign_add(config.global_batch, read_value=False)
            with tf.control_dependencies([followed, counted]):
                return tf.identity(global_step)


def classifier(scope, inference, images, labels):
    """Builds one tower's network and loss.

    Args:
      scope: the tower's name scope.
      inference: function images -> logits, float32 [n, classes].
      images: float32 [n, height, width, 3].
      labels: int32 [n].

    Returns:
      A dict of float32 scalars: 'total_loss' = 'cross_entropy' + 'weight_loss', and
      'train_accuracy' of this batch.
    """
    def network():
        logits = inference(images)
        cross_entropy = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), name='cross_entropy')
        tf.add_to_collection(tf.GraphKeys.LOSSES, cross_entropy)
        return logits, cross_entropy

    total_loss, (logits, cross_entropy) = tower_loss(scope, network)
    correct = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)
    return dict(total_loss=total_loss, cross_entropy=cross_entropy, weight_loss=total_loss - cross_entropy,
                train_accuracy=tf.reduce_mean(tf.cast(correct, tf.float32)))


def _loop(config, training, first_step, towers, termination):
    """Runs the training graph until a hook stops it."""
    graph = tf.get_default_graph()
    checkpoints = checkpoint.Checkpoints(
        config.train_dir, tf.train.get_global_step(), training.examples_seen, config.max_to_keep)
    writer = tf.summary.FileWriter(config.train_dir, filename_suffix=run_dir.EVENTS_SUFFIX)
    # TensorBoard drops what an earlier process wrote from this step on.
    writer.add_session_log(tf.SessionLog(status=tf.SessionLog.START), first_step + 1)
    writer.add_graph(graph)
    writer.add_summary(summaries.text('config', '```\n%s\n```' % run_dir.describe(config)), first_step)
    step, batch = training.step, config.global_batch
    loss = tf.reduce_mean(training.losses, name='loss')
    progress = hooks.ProgressHook(step, loss, batch, config.log_frequency, config.max_steps, sys.stdout)
    # In this order: nothing of a diverged step is written, and no curve ends before its checkpoint.
    between_steps = [
        hooks.DivergenceHook(step, training.losses, config.train_dir), progress,
        hooks.SummaryHook(step, training.summary, batch, config.summary_steps, writer),
        hooks.CheckpointHook(step, checkpoints, config.save_steps),
        hooks.StopHook(step, config.max_steps, termination)]
    session_config = devices.session_config(towers, config.log_device_placement)
    scaffold = tf.train.Scaffold(
        init_fn=lambda scaffold, session: checkpoints.restore(session),
        local_init_op=tf.group(tf.local_variables_initializer(), training.initialise))
    try:
        with tf.train.MonitoredTrainingSession(
                scaffold=scaffold, hooks=between_steps, save_checkpoint_secs=None, save_summaries_steps=None,
                log_step_count_steps=None, config=session_config) as session:
            while not session.should_stop():
                session.run(step)
    finally:
        progress.close()
        writer.close()
    print('saved      %s' % run_dir.checkpoints(config.train_dir)[-1])
