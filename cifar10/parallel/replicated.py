"""Replicated variables: each device has its own copy, and gradients are all-reduced to their mean.

Every device applies the same mean to the same values, so the copies never drift apart, and only gradients
travel between devices.
"""
import contextlib

import tensorflow.compat.v1 as tf

from cifar10.parallel.all_reduce import means_over_towers
from cifar10.parallel.towers import gradients_by_variable
from cifar10.parallel.update import Update, UpdateMode


class Replicated(UpdateMode):
    """A copy of the variables for each group of devices, shared by the group's towers.

    Group 0 has the primaries, the only copy that is saved.
    """
    recovers = False  # the members of a collective would wait for a lost one forever

    def __init__(self, devices):
        super().__init__(devices)
        self._trainable = [[] for _ in devices.groups]  # each group's trained variables
        self._created = [0 for _ in devices.groups]  # how many variables each group has, slots included
        self._primary_values = []  # reads of group 0's variables, in the order of their creation

    def optimizers(self, make_optimizer):
        optimizers = []
        for k, device in enumerate(self._group_devices):
            with tf.device(device), self.tower_variables(k):
                optimizers.append(make_optimizer())
        return [optimizers[self.devices.group_of(k)] for k in range(self.devices.num_towers)]

    @property
    def _group_devices(self):
        """Each group's device; group k's is that of tower k."""
        return self.devices.tower_devices[:len(self.devices.groups)]

    @contextlib.contextmanager
    def tower_variables(self, k):
        """Group 0 creates plain variables, the others local copies that start with the primary's value."""
        group = self.devices.group_of(k)

        def creator(next_creator, **arguments):
            trained = arguments.get('trainable') is not False
            if group > 0:
                # All groups create their variables in the same order. Local variables are initialised after
                # the primaries were initialised or restored, so the copies follow a restore by themselves.
                arguments.update(collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False,
                                 initial_value=self._primary_values[self._created[group]])
            variable = next_creator(**arguments)
            self._created[group] += 1
            if trained:
                self._trainable[group].append(variable)
            if group == 0:
                with tf.control_dependencies(None):
                    self._primary_values.append(variable.read_value())
            return variable

        scope = f'replica_{group}' if group else tf.get_variable_scope()
        first_of_group = k == group
        with tf.variable_creator_scope(creator), \
                tf.variable_scope(scope, reuse=not first_of_group, auxiliary_name_scope=False):
            yield

    def trainable_variables(self, k):
        return self._trainable[self.devices.group_of(k)]

    def reduce(self, towers):
        tower_grads = [tower.gradients + tower.statistics for tower in towers]
        primaries = [variable for _, variable in tower_grads[0]]
        matched = gradients_by_variable([[(gradient, primary) for (gradient, _), primary in zip(pairs, primaries)]
                                         for pairs in tower_grads])
        used = [i for i, (gradients, _) in enumerate(matched) if gradients is not None]
        averaged = means_over_towers([[pairs[i][0] for i in used] for pairs in tower_grads], self.devices)
        num_gradients = len(towers[0].gradients)
        updates = []
        for group, device in enumerate(self._group_devices):
            means = dict(zip(used, averaged[group]))
            pairs = [(means.get(i), variable) for i, (_, variable) in enumerate(tower_grads[group])]
            readers = range(group, len(towers), len(self.devices.groups))
            updates.append(Update(pairs[:num_gradients], pairs[num_gradients:], readers, device))
        return updates

    def apply(self, k, tower, update, global_step):
        with self.tower_variables(k):  # the slots are replicated too
            return super().apply(k, tower, update, global_step)
