"""Builds the graph of a training step: input, towers, update, figures and summaries."""
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.graphs import EXAMPLES_SEEN
from cifar10.data.pipeline import tower_batches
from cifar10.model import averages
from cifar10.model.network_draws import at_position
from cifar10.parallel.towers import collected_losses, tower_loss
from cifar10.parallel.update import Step
from cifar10.training import summaries
from cifar10.training.plan import Plan

_MOST_INPUTS = 16  # per picture


class TrainingGraph(NamedTuple):
    """The operations and tensors of a training step.

    Attributes:
      fetches: for each thread, the tensors that its steps fetch: `update`, the operation that takes the step;
        `losses`, float32 [n], the total losses of the step's n towers; and `figures`, float32 [m]. In `async` each
        tower has a thread, else all towers share one.
      figures: the names of the m figures of a step.
      learning_rate: float32 scalar, which may be fed; None in a whole model.
      summary: string scalar, a serialised `tf.Summary` of a step of the first thread; None in a run without summaries.
      inputs: the first augmented images of the first tower's batch, and their labels; empty if its network gets no
        images.
      batches: (the tensors of the batch, its distance from `examples_seen`) of each tower; each tensor may be fed.
      step: the towers and their update, as the update mode built them.
      average: the mode's `local_steps.Average`, which moves the moving averages; None if the towers' variables are
        equal after each step.
      global_step, examples_seen: int64 variables, the updates and the positions so far.
      initialise: operations that initialise the variables, in order.
      start_inputs: reads the data and starts the inputs at position `examples_seen`; run it after `initialise` and
        after all assignments to variables.
    """
    fetches: Sequence[dict[str, Any]]
    figures: Sequence[str]
    learning_rate: tf.Tensor | None
    summary: tf.Tensor | None
    inputs: Sequence[tf.Tensor]
    batches: list
    step: Step
    average: Any
    global_step: tf.Variable
    examples_seen: tf.Variable
    initialise: Sequence[tf.Operation]
    start_inputs: tf.Operation


def build(plan: Plan, learnt: Mapping[str, Any]) -> TrainingGraph:
    """Builds the training graph in the current default graph.

    Args:
      learnt: from `Recipe.learnt`; empty for a resumed run.
    """
    with tf.device('/cpu:0'):
        global_step = tf.train.get_or_create_global_step()
        examples_seen = tf.get_variable(
            EXAMPLES_SEEN, [], tf.int64, tf.zeros_initializer(), trainable=False)
        rates = plan.recipe.learning_rates(examples_seen)
        next_batch, start_inputs = _input(plan, global_step, examples_seen)
    tower, batches, fed = _tower(plan, learnt, next_batch, examples_seen)
    step = plan.mode.build(tower, plan.precision.optimizer(plan.recipe.optimizer(*rates)), global_step)
    with tf.device('/cpu:0'), tf.name_scope('summaries/'):
        inputs = [each[:_MOST_INPUTS] for each in fed[0]]
    shown, names = _figures(plan, step, rates[0])
    train_ops, average = _counted(plan, step, global_step, examples_seen)
    with tf.name_scope('initialise'), plan.mode.scope():
        # A tower's computation waits for its turn, and in `async` for the step. So does an initial value that the
        # network computes in the tower.
        before = [global_step, *(step.turns.counters if step.turns else [])]
        initialise = [tf.variables_initializer(before), tf.global_variables_initializer()]
        start_inputs = tf.group(tf.local_variables_initializer(), tf.tables_initializer(), *start_inputs)
    return TrainingGraph(
        [dict(update=train_op, **each) for train_op, each in zip(train_ops, shown)], names, rates[0],
        _summary(plan, step), inputs, batches, step, average, global_step, examples_seen, initialise, start_inputs)


def _input(plan, global_step, examples_seen):
    """Returns (function (k) for tower k's next batch, the operations that start the inputs)."""
    devices = plan.devices
    with tf.name_scope('input'):
        stop = examples_seen + (plan.last_step - global_step) * plan.examples_per_step
        return tower_batches(plan.source, examples_seen, stop, devices.hosts, len(devices.groups),
                             plan.mode.synchronous, devices.tower_devices if devices.on_gpus else None)


def _tower(plan, learnt, next_batch, examples_seen):
    """Returns (function (k, scope) that builds tower k, its list of batches, its list of network inputs)."""
    recipe, mode = plan.recipe, plan.mode
    batches, fed, shared = [], [], dict[str, Any]()

    def tower(k, scope):
        batch = next_batch(k)
        offset = tf.placeholder_with_default(np.int64(k * plan.source.batch_size), [])
        batches.append((tf.nest.flatten(batch, expand_composites=True), offset))
        with recipe.divided(plan.devices.devices_of(k), mode.gate(k)), \
                at_position(plan.settings.run.seed, examples_seen, offset):
            if recipe.own:
                computed, shown = recipe.own.train(
                    batch, plan.precision.dtype, plan.precision.loss_scale(mode.optimizer_of(k)), shared, **learnt)
                fed.append([shown[name] for name in ('images', 'labels') if name in shown])
                return computed._replace(scalars=dict(computed.scalars, **summaries.losses(shown.get('losses', {}))))
            batch = recipe.augmented(*batch)
            fed.append(batch)
            total_loss, scalars = tower_loss(scope, lambda: recipe.add_loss(*batch, plan.precision.dtype, **learnt))
            return dict(total_loss=total_loss, **scalars, **summaries.losses(collected_losses(scope)))

    return tower, batches, fed


def _counted(plan, step, global_step, examples_seen):
    """Builds the operations after an update: moving averages and the count of examples.

    Returns:
      (for each thread, the operation that takes its step; the mode's `Average` with moving averages, or None).
    """
    average = step.average
    averaged = [variable for _, variable in step.gradients] if plan.recipe.moving_averages else []
    moving = averages.MovingAverages(averaged, global_step, average.steps if average else None)

    def after_step(train_op):
        # After the update, so that neither races with it.
        with tf.device('/cpu:0'), tf.name_scope('after_update'), tf.control_dependencies([train_op]):
            moved = [] if average else [moving.move()]
            counted = examples_seen.assign_add(plan.examples_per_step, read_value=False)
            return tf.group(*moved, counted)

    def after_average(operation):
        with tf.device('/cpu:0'), tf.name_scope('after_average'), tf.control_dependencies([operation]):
            return moving.move()

    train_ops = [after_step(train_op) for train_op in step.train_ops]
    if average:
        average = average._replace(
            scheduled=after_average(average.scheduled), equalise=after_average(average.equalise))
    return train_ops, average


def _figures(plan, step, rate):
    """Returns (for each thread, the fetches of its steps except the update; the names of the figures).

    A whole model may have no rate or accuracy. Towers that update on their own have a staleness.
    """
    threads = [step.scalars] if plan.mode.synchronous else [[scalars] for scalars in step.scalars]
    rates = {} if rate is None else dict(learning_rate=rate)
    shown = []
    for scalars in threads:
        with tf.device('/cpu:0'), tf.name_scope('summaries/'):
            losses = tf.stack([each['total_loss'] for each in scalars], name='losses')
            # One vector, because each fetched tensor slows the step.
            means = tf.reduce_mean(tf.stack([tf.stack([*each.values()]) for each in scalars]), 0)
            shown.append(dict(losses=losses, figures=tf.concat([means, [*rates.values()]], 0, name='figures')))
    # In copies, a loss may be named after a variable; the order is the same.
    names = ['loss' if name == 'total_loss' else name for name in step.scalars[0]]
    return shown, [*names, *rates]


def _summary(plan, step):
    if not plan.settings.reports.summary_steps:
        return None
    # A network may also have added integers, scalars, and objects without a name.
    activations = [each for each in tf.get_collection(tf.GraphKeys.ACTIVATIONS, 'tower_0/')
                   if each.dtype.is_floating and each.shape.rank != 0]
    own = [each for scope in ('tower_0/', 'update/') for each in tf.get_collection(tf.GraphKeys.SUMMARIES, scope)]
    return summaries.build(step, activations, own)
