"""Asynchronous updates: one copy of the variables; each tower applies its gradients as soon as it has them.

Every tower is driven by a thread of its own and waits for nobody, so a gradient may be stale: computed
from variables that other towers have changed since. Knows towers and optimizers; nothing of threads
(`hooks.DriverHook` has them), images or networks.
"""
import tensorflow.compat.v1 as tf

from cifar10.towers import average_gradients, build_towers
from cifar10.updates import ParameterServer, Step


class Asynchronous(ParameterServer):
    """As ParameterServer, but a train operation a tower, each of which counts as an update."""

    def __init__(self, devices, servers=('/cpu:0',)):
        super().__init__(devices, servers)
        self.batches = 1

    def build(self, tower_fn, make_optimizer, global_step):
        with tf.device('/cpu:0'):
            optimizer = make_optimizer()

        def tower(k, scope):
            with tf.device('/cpu:0'):
                begun = global_step.read_value()
            with tf.control_dependencies([begun]):  # before any variable is read
                scalars = tower_fn(k, scope)
                pairs = optimizer.compute_gradients(scalars['total_loss'], colocate_gradients_with_ops=True)
            return dict(scalars), average_gradients([pairs]), begun

        with tf.variable_creator_scope(self._create_on_server):
            towers = build_towers(self.devices, tower)
        shown, train_ops, values = [], [], {}
        with tf.device('/cpu:0'), tf.name_scope('update'):
            for k, (scalars, pairs, begun) in enumerate(towers):
                gradients = [gradient for gradient, _ in pairs if gradient is not None]
                with tf.control_dependencies([scalars['total_loss'], *gradients]):
                    read = {variable.op.name: variable.read_value() for _, variable in pairs} if k == 0 else {}
                    scalars['staleness'] = tf.cast(global_step.read_value() - begun, tf.float32)
                with tf.control_dependencies([scalars['staleness'], *read.values()]):
                    update = optimizer.apply_gradients(pairs, global_step)
                values.update(read)
                noted, last = _note(k, scalars, instead=towers[0][0])
                shown.append(scalars if k == 0 else last)
                train_ops.append(tf.group(update, noted))
        return Step(shown, towers[0][1], values, train_ops)


def _note(k, scalars, instead):
    """Keeps a tower's scalars for the thread that reports, which must not run the tower itself.

    Args:
      k: the tower's number.
      scalars: dict of float32 scalars.
      instead: the same of another tower, shown as long as this one has not ended a step.

    Returns:
      (the operation that keeps them, dict of those kept last).
    """
    with tf.variable_scope('last_of_tower_%d' % k):
        def variable(name):
            return tf.get_variable(name, [], tf.float32, tf.zeros_initializer(), trainable=False,
                                   collections=[tf.GraphKeys.LOCAL_VARIABLES])
        steps = variable('steps')
        kept = {name: variable(name) for name in scalars}
        assigned = [kept[name].assign(value, read_value=False) for name, value in scalars.items()]
        with tf.control_dependencies(assigned):
            noted = steps.assign_add(1.0, read_value=False)
        any_yet = steps.read_value() > 0
        return noted, {name: tf.where(any_yet, kept[name].read_value(), instead[name]) for name in scalars}
