"""Asynchronous updates: one copy of the variables; each tower applies its gradients as soon as it has them.

Each tower runs in a thread of its own (`run.async_workers`) and waits for no other. Its gradients may
therefore be stale: computed from variables that other towers have changed since.
"""
import contextlib

import tensorflow.compat.v1 as tf

from cifar10.parallel.parameter_server import ParameterServer
from cifar10.parallel.update import Update


class Asynchronous(ParameterServer):
    """Like ParameterServer, but with a train operation for each tower; each run of one is an update."""
    synchronous = False
    one_tower_per_device = True

    def build(self, tower_fn, make_optimizer, global_step, **options):
        with tf.device('/cpu:0'), tf.name_scope('report'):
            self._steps_at_read = [global_step.read_value() for _ in self.devices.tower_devices]
            self._updating = tf.CriticalSection(name='updating')
        step = super().build(tower_fn, make_optimizer, global_step, **options)
        with tf.device('/cpu:0'), tf.name_scope('report'):
            towers = [dict(scalars) for scalars in step.scalars]
            for scalars, seconds in zip(towers, step.seconds):
                scalars['waited'], scalars['seconds'] = tf.unstack(seconds)
            records = [_record(k, scalars, fallback=towers[0]) for k, scalars in enumerate(towers)]
            record_ops, last_scalars = zip(*records)
            towers[1:] = last_scalars[1:]  # the thread that reports runs tower 0 itself
            seconds = [tf.stack([scalars.pop('waited'), scalars.pop('seconds')]) for scalars in towers if step.seconds]
        return step._replace(
            scalars=towers, seconds=seconds,
            train_ops=[tf.group(*operations) for operations in zip(step.train_ops, record_ops)])

    @contextlib.contextmanager
    def tower_variables(self, k):
        # The step is read before any variable, so that staleness counts every update since.
        with tf.control_dependencies([self._steps_at_read[k]]), super().tower_variables(k):
            yield

    def reduce(self, towers):
        # One tower's gradients are their own mean. They are averaged all the same, so that a change to the mean
        # (clipping, for example) reaches every mode that has one copy of the variables.
        with tf.device('/cpu:0'):
            return [Update(self.average([tower.gradients]), tower.statistics, [tower], '/cpu:0') for tower in towers]

    def apply(self, update, counter):
        tower, = update.towers

        def measure_and_apply():
            staleness = tf.cast(counter.read_value() - self._steps_at_read[tower.k], tf.float32)
            with tf.control_dependencies([staleness]):
                applied = super(Asynchronous, self).apply(update, counter)
            with tf.control_dependencies([applied]):
                return tf.identity(staleness)

        # One update at a time: some optimizers read, compute and assign, and would overwrite an update that
        # came in between. A tower enters only when it has its gradients, so towers still compute in parallel.
        tower.scalars['staleness'] = self._updating.execute(measure_and_apply)
        return tower.scalars['staleness'].op


def _record(k, scalars, fallback):
    """Records a tower's scalars in a variable, for the thread that reports: it must not run the tower itself.

    Args:
      k: the tower's number.
      scalars: dict of float32 scalars.
      fallback: the scalars of another tower, reported until this one has completed a step.

    Returns:
      (the operation that records the scalars, dict of those recorded last).
    """
    # All scalars are in one variable, so that a read never mixes two steps. Its last element becomes 1 with
    # the first record.
    record = tf.get_variable(f'last_of_tower_{k}', [len(scalars) + 1], tf.float32, tf.zeros_initializer(),
                             trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    record_op = record.assign(tf.stack([*scalars.values(), 1.0]), read_value=False)
    *values, recorded = tf.unstack(record.read_value())
    last = {name: tf.where(recorded > 0, value, fallback[name]) for name, value in zip(scalars, values)}
    return record_op, last
