"""Asynchronous updates: each tower immediately applies its gradients to the only copy of the variables.

Each tower runs in its own thread (`stepper.Stepper`) and does not wait for other towers. So its gradients may be stale:
computed from variables that other towers have changed since.
"""
import contextlib

import tensorflow.compat.v1 as tf

from cifar10.parallel.parameter_server import ParameterServer


class Asynchronous(ParameterServer):
    """Like ParameterServer, but with a train operation for each tower; each run of a train operation is an update."""
    synchronous = False
    one_tower_per_device = True

    def build(self, tower_fn, make_optimizer, global_step):
        with tf.device('/cpu:0'), tf.name_scope('report'):
            self._steps_at_read = [global_step.read_value() for _ in self.devices.tower_devices]
            self._updating = tf.CriticalSection(name='updating')
        return super().build(tower_fn, make_optimizer, global_step)

    @contextlib.contextmanager
    def tower_variables(self, k):
        # The step is read before any variable, so that staleness counts every update since.
        with tf.control_dependencies([self._steps_at_read[k]]), super().tower_variables(k):
            yield

    def reduce(self, towers):
        # The mean over one tower changes nothing, but a change to the mean (clipping, for example) then reaches every
        # mode with one copy of the variables.
        return [update for tower in towers for update in super(Asynchronous, self).reduce([tower])]

    def apply(self, update, counter):
        tower, = update.towers

        def measure_and_apply():
            staleness = tf.cast(counter.read_value() - self._steps_at_read[tower.k], tf.float32)
            with tf.control_dependencies([staleness]):
                applied = super(Asynchronous, self).apply(update, counter)
            with tf.control_dependencies([applied]):
                return tf.identity(staleness)

        # One update at a time: some optimizers read, compute and assign, and would overwrite a concurrent update.
        # A tower enters only when it has its gradients, so towers still compute in parallel.
        tower.scalars['staleness'] = self._updating.execute(measure_and_apply)
        return tower.scalars['staleness'].op
