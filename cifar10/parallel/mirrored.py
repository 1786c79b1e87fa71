"""Mirrored variables: `tf.distribute.MirroredStrategy` behind the interface of the other modes.

The strategy owns the copies of the variables and the all-reduce, and it requires that gradients and updates are built
in its replica context. So this mode overrides `build`, including the towers' name scopes.
"""
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError
from cifar10.parallel.towers import average_gradients
from cifar10.parallel.update import Step, UpdateMode, move, stacked


class Mirrored(UpdateMode):
    """Uses the strategy's variables and reductions, with one replica on each device."""
    one_tower_per_device = True
    uses_strategy = True

    def __init__(self, devices):
        super().__init__(devices)
        device_names = devices.tower_devices
        if not devices.on_gpus:
            # The strategy looks up its devices in TensorFlow's process-wide list, not in the session.
            cpu, = tf.config.list_physical_devices('CPU')
            num_cpus = 1 + max(int(name.rsplit(':', 1)[1]) for name in device_names)
            if len(tf.config.get_logical_device_configuration(cpu) or [None]) < num_cpus:
                try:
                    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_cpus)
                except RuntimeError as error:
                    raise UsageError(f'--variable_update=mirrored requires {num_cpus} CPU devices, but this process '
                                     'started TensorFlow with fewer; start a new process') from error
        self._strategy = tf2.distribute.MirroredStrategy(device_names)

    def build(self, tower_fn, make_optimizer, global_step):
        optimizer = make_optimizer()
        self._optimizers = [optimizer] * self.devices.num_towers
        names: list[str] = []

        def replica():
            k = int(tf2.get_static_value(tf2.distribute.get_replica_context().replica_id_in_sync_group))
            with tf.name_scope(f'tower_{k}') as scope:
                with tf.variable_creator_scope(_create_averaged):
                    scalars, pairs, statistics, *_ = self.computed(
                        scope, tower_fn(k, scope), optimizer, tf.trainable_variables())
                values = [variable.read_value() for _, variable in pairs]
                reads = [*values, scalars['total_loss'], *[value for _, value, _ in statistics]]
                with tf.control_dependencies(reads):  # before any variable changes
                    applied = self._applied(optimizer, pairs, statistics)
            names[:] = scalars  # the same in all replicas
            return stacked(scalars), [gradient for gradient, _ in pairs], values, applied

        with self._strategy.scope():
            built = self._strategy.run(replica)
        return self._step(names, global_step, *built)

    def _applied(self, optimizer, pairs, statistics):
        # The strategy sums gradients over the replicas; towers are averaged.
        shares = [(None if gradient is None else gradient / self.devices.num_towers, variable)
                  for gradient, variable in pairs]
        return tf.group(optimizer.apply_gradients(shares), *move(statistics))

    def _step(self, names, global_step, vectors, gradients, values, applied):
        primaries = [self._per_replica(variable)[0] for variable in tf.trainable_variables()]
        tower_grads = [[(self._per_replica(gradient)[k], primary) for gradient, primary in zip(gradients, primaries)]
                       for k in range(self.devices.num_towers)]
        with tf.device('/cpu:0'), tf.name_scope('update'):
            with tf.control_dependencies(self._per_replica(applied)):
                train_op = global_step.assign_add(1, read_value=False)
            return Step(
                scalars=[dict(zip(names, tf.unstack(vector))) for vector in self._per_replica(vectors)],
                gradients=average_gradients(tower_grads),
                values={primary.op.name: self._per_replica(value)[0] for primary, value in zip(primaries, values)},
                train_ops=[train_op])

    def _per_replica(self, value):
        if value is None:  # a variable without a gradient
            return [None] * self.devices.num_towers
        return self._strategy.experimental_local_results(value)

    def gate(self, k):
        return None

    def copied(self):
        variables = [self._per_replica(variable) for variable in tf.global_variables()]
        return [list(zip(*[copies for copies in variables if len(copies) == self.devices.num_towers]))]

    def scope(self):
        return self._strategy.scope()


def _create_averaged(next_creator, **arguments):
    """Creates a variable; assignments to an untrained float variable are averaged over the replicas."""
    if arguments.get('trainable') is False:
        initial = arguments.get('initial_value')
        is_averaged = tf.as_dtype(arguments.get('dtype') or getattr(initial, 'dtype', tf.float32)).is_floating
        arguments['aggregation'] = (tf.VariableAggregation.MEAN if is_averaged
                                    else tf.VariableAggregation.ONLY_FIRST_REPLICA)
    return next_creator(**arguments)
