"""Mirrored variables: `tf.distribute.MirroredStrategy` behind the interface of the other modes.

The strategy owns the copies of the variables and the all-reduce, and wants gradients and updates inside its
replica context, so this mode builds everything by itself, the name scopes of the towers included.
"""
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.parallel.towers import average_gradients, dense
from cifar10.parallel.update import Step, UpdateMode, move


class Mirrored(UpdateMode):
    """The strategy's own variables and reductions, one replica on each device."""
    one_tower_per_device = True
    spans_machines = False

    def __init__(self, devices):
        super().__init__(devices)
        names = devices.tower_devices
        if not devices.on_gpus:
            # The strategy looks its devices up in TensorFlow's process-wide list, not in the session.
            cpu, = tf.config.list_physical_devices('CPU')
            wanted = 1 + max(int(name.rsplit(':', 1)[1]) for name in names)
            if len(tf.config.get_logical_device_configuration(cpu) or [None]) < wanted:
                tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * wanted)
        self._strategy = tf2.distribute.MirroredStrategy(names)

    def build(self, tower_fn, make_optimizer, global_step, tower_statistics=lambda scope: []):
        optimizer, count = make_optimizer(), len(self.devices.tower_devices)

        def replica():
            k = int(tf2.get_static_value(tf2.distribute.get_replica_context().replica_id_in_sync_group))
            with tf.name_scope(f'tower_{k}') as scope:
                with tf.variable_creator_scope(_create_averaged):
                    scalars = tower_fn(k, scope)
                pairs = dense(optimizer.compute_gradients(scalars['total_loss'], tf.trainable_variables(),
                                                          colocate_gradients_with_ops=True))
                values = [variable.read_value() for _, variable in pairs]
                # The strategy adds gradients up; towers are averaged.
                parts = [(gradient if gradient is None else gradient / count, v) for gradient, v in pairs]
                statistics = tower_statistics(scope)
                reads = [*values, scalars['total_loss'], *[value for _, value, _ in statistics]]
                with tf.control_dependencies(reads):  # before any variable changes
                    applied = tf.group(optimizer.apply_gradients(parts), *[move(*each) for each in statistics])
            return scalars, [gradient for gradient, _ in pairs], values, applied

        with self._strategy.scope():
            scalars, gradients, values, applied = self._strategy.run(replica)
        primaries = [self._of_each(variable)[0] for variable in tf.trainable_variables()]
        tower_grads = [[(self._of_each(g)[k], v) for g, v in zip(gradients, primaries)] for k in range(count)]
        with tf.device('/cpu:0'), tf.name_scope('update'):
            with tf.control_dependencies(self._of_each(applied)):
                train_op = global_step.assign_add(1, read_value=False)
            return Step([{name: self._of_each(value)[k] for name, value in scalars.items()} for k in range(count)],
                        average_gradients(tower_grads),
                        {variable.op.name: self._of_each(value)[0] for variable, value in zip(primaries, values)},
                        [train_op])

    def _of_each(self, value):
        """Returns the replicas' values of what the strategy returned as one."""
        if value is None:  # a gradient that there is none of
            return [None] * len(self.devices.tower_devices)
        return self._strategy.experimental_local_results(value)

    def scope(self):
        return self._strategy.scope()


def _create_averaged(next_creator, **arguments):
    """Creates a variable; if it is not trained, the strategy averages over the replicas what is assigned to it."""
    if arguments.get('trainable') is False:
        arguments['aggregation'] = tf.VariableAggregation.MEAN
    return next_creator(**arguments)
