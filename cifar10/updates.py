"""How the towers' gradients become an update: what every update mode offers, and the default one.

Knows towers and optimizers; nothing of images or networks. The other modes have files of their own,
and `modes` is the table of all.
"""
import contextlib
import typing

import tensorflow.compat.v1 as tf

from cifar10.packing import pack_gradients
from cifar10.towers import average_gradients, build_towers


class Step(typing.NamedTuple):
    """What a mode builds.

    Attributes:
      towers: a dict of scalars a tower, by the names that `tower_fn` gave them.
      gradients: (gradient, variable) pairs, as they are applied to the variables that are saved.
      values: variable name -> its value before the update, for summaries.
      train_ops: one operation a driver thread; each run of one is an update.
    """
    towers: list
    gradients: list
    values: dict
    train_ops: list


class Update:
    """A mode: where a tower's variables live, how gradients become updates, what follows a restore.

    Attributes:
      devices: the towers' device names.
      servers: the names of the CPU devices that hold what is shared.
      batches: how many towers' batches one update consumes.
      recovers: whether training goes on when a lost device comes back.
    """
    recovers = True

    def __init__(self, devices, servers=('/cpu:0',)):
        self.devices = devices
        self.servers = servers
        self.batches = len(devices)

    def build(self, tower_fn, make_optimizer, global_step):
        """Builds the towers and their update.

        Args:
          tower_fn: function (k, scope) -> dict of scalars, among them 'total_loss'; builds tower k.
          make_optimizer: function without arguments -> `tf.train.Optimizer`.
          global_step: int64 variable, incremented by each update.

        Returns:
          A Step.
        """
        raise NotImplementedError

    def after_restore(self):
        """Returns an operation to be run once the saved variables have their values."""
        return tf.no_op()

    def scope(self):
        """Returns a context that making the session wants to be in."""
        return contextlib.nullcontext()


class ParameterServer(Update):
    """One copy of the variables on the CPU; the mean of the towers' gradients is applied once."""

    def __init__(self, devices, servers=('/cpu:0',)):
        super().__init__(devices, servers)
        self._elements = dict.fromkeys(servers, 0)  # held by each

    def build(self, tower_fn, make_optimizer, global_step):
        with tf.device('/cpu:0'):
            optimizer = make_optimizer()

        def tower(k, scope):
            scalars = tower_fn(k, scope)
            return scalars, optimizer.compute_gradients(scalars['total_loss'], colocate_gradients_with_ops=True)

        with tf.variable_creator_scope(self._create_on_server):
            towers, tower_grads = zip(*build_towers(self.devices, tower))
        with tf.device('/cpu:0'), tf.name_scope('update'):
            if 'gpu' in self.devices[0]:  # between CPU devices nothing travels
                packed_grads, unpack = pack_gradients(tower_grads, self.devices)
                gradients = unpack(average_gradients(packed_grads))
            else:
                gradients = average_gradients(tower_grads)
            values = {variable.op.name: variable.read_value() for _, variable in gradients}
            losses = [scalars['total_loss'] for scalars in towers]
            # Some gradients are there before a tower has read every variable. No variable changes until
            # each tower has its loss, and with it all that it reads, and until what is shown was read.
            with tf.control_dependencies([*values.values(), *losses]):
                # Optimizers put their slots and updates on the variables' device.
                train_op = optimizer.apply_gradients(gradients, global_step)
        return Step(towers, gradients, values, [train_op])

    def _create_on_server(self, next_creator, **arguments):
        server = min(self._elements, key=self._elements.get)
        with tf.device(server):
            variable = next_creator(**arguments)
        self._elements[server] += variable.shape.num_elements()
        return variable
