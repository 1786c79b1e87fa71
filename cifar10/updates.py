"""Update modes: where variables live, and how the towers' gradients become an update.

Knows towers and optimizers; nothing of images or networks. A mode is a class with the one method
`build`; `MODES` is the table of them.
"""
import typing

import tensorflow.compat.v1 as tf

from cifar10.towers import average_gradients, build_towers


class Step(typing.NamedTuple):
    """What a mode builds.

    Attributes:
      towers: a dict of scalars a tower, as `tower_fn` returned them.
      gradients: (gradient, variable) pairs that are applied.
      values: variable name -> its value before the update, for summaries.
      train_ops: one operation a driver thread; each run of one is an update.
    """
    towers: list
    gradients: list
    values: dict
    train_ops: list


class ParameterServer:
    """One copy of the variables on the CPU; the mean of the towers' gradients is applied once."""

    def __init__(self, devices, server='/cpu:0'):
        """Takes the towers' device names, and the device of the variables and of the averaging."""
        self._devices = devices
        self._server = server

    def build(self, tower_fn, make_optimizer, global_step):
        """Builds the towers and their update.

        Args:
          tower_fn: function (k, scope) -> dict of scalars, among them 'total_loss'; builds tower k.
          make_optimizer: function without arguments -> `tf.train.Optimizer`.
          global_step: int64 variable, incremented by each update.

        Returns:
          A Step.
        """
        with tf.device(self._server):
            optimizer = make_optimizer()

        def tower(k, scope):
            scalars = tower_fn(k, scope)
            return scalars, optimizer.compute_gradients(scalars['total_loss'])

        with tf.variable_creator_scope(self._create_on_server):
            towers, tower_grads = zip(*build_towers(self._devices, tower))
        with tf.device(self._server), tf.name_scope('update'):
            gradients = average_gradients(tower_grads)
            values = {variable.op.name: variable.read_value() for _, variable in gradients}
            # What is shown of a variable is what the step started from, however the two race.
            with tf.control_dependencies(values.values()):
                # Optimizers put their slots and updates on the variables' device.
                train_op = optimizer.apply_gradients(gradients, global_step)
        return Step(towers, gradients, values, [train_op])

    def _create_on_server(self, next_creator, **arguments):
        with tf.device(self._server):
            return next_creator(**arguments)


MODES = {'parameter_server': ParameterServer}
