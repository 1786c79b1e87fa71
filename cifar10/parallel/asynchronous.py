"""Asynchronous updates: one copy of the variables; each tower applies its gradients as soon as it has them.

Each tower is run by a thread of its own (`run.async_workers`) and waits for no other, so a gradient may be
stale: computed from variables that other towers have changed since.
"""
import contextlib

import tensorflow.compat.v1 as tf

from cifar10.parallel.parameter_server import ParameterServer
from cifar10.parallel.towers import average_gradients
from cifar10.parallel.update import Update


class Asynchronous(ParameterServer):
    """As ParameterServer, but with a train operation for each tower, each of which counts as an update."""
    synchronous = False
    one_tower_per_device = True

    def build(self, tower_fn, make_optimizer, global_step, **options):
        with tf.device('/cpu:0'), tf.name_scope('report'):
            self._steps_at_read = [global_step.read_value() for _ in self.devices.tower_devices]
            self._updating = tf.CriticalSection(name='updating')
        step = super().build(tower_fn, make_optimizer, global_step, **options)
        with tf.device('/cpu:0'), tf.name_scope('report'):
            recorded = [_record(k, scalars, fallback=step.scalars[0]) for k, scalars in enumerate(step.scalars)]
        return step._replace(
            scalars=[step.scalars[0], *[last for _, last in recorded[1:]]],
            train_ops=[tf.group(train_op, record_op) for train_op, (record_op, _) in zip(step.train_ops, recorded)])

    @contextlib.contextmanager
    def tower_variables(self, k):
        with tf.control_dependencies([self._steps_at_read[k]]), super().tower_variables(k):  # before any is read
            yield

    def reduce(self, towers):
        # The mean of one tower's gradients is those gradients. `average_gradients` is called all the same, so that
        # whoever changes how gradients are averaged (clips them, say) changes every mode that has one copy.
        return [Update(average_gradients([tower.gradients]), tower.statistics, [k], '/cpu:0')
                for k, tower in enumerate(towers)]

    def apply(self, k, tower, update, global_step):
        def whole():
            staleness = tf.cast(global_step.read_value() - self._steps_at_read[k], tf.float32)
            with tf.control_dependencies([staleness]):
                applied = super(Asynchronous, self).apply(k, tower, update, global_step)
            with tf.control_dependencies([applied]):
                return tf.identity(staleness)

        # One update after the other: some optimizers read, compute and assign, and would lose another's update that
        # came between. A tower enters when it has its gradients, so computing them is not held up.
        tower.scalars['staleness'] = self._updating.execute(whole)
        return tower.scalars['staleness'].op


def _record(k, scalars, fallback):
    """Keeps a tower's scalars for the thread that reports, which must not run the tower itself.

    Args:
      k: the tower's number.
      scalars: dict of float32 scalars.
      fallback: the same of another tower, reported until this one has ended a step.

    Returns:
      (the operation that records them, dict of those recorded last).
    """
    # One variable, so that what is read of it belongs to one step; the last element tells whether there was any.
    kept = tf.get_variable(f'last_of_tower_{k}', [len(scalars) + 1], tf.float32, tf.zeros_initializer(),
                           trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    record_op = kept.assign(tf.stack([*scalars.values(), 1.0]), read_value=False)
    *values, ended = tf.unstack(kept.read_value())
    return record_op, {name: tf.where(ended > 0, value, fallback[name]) for name, value in zip(scalars, values)}
