"""Replicated variables: each device has its own copy, gradients are all-reduced to their mean.

Every device applies the same mean to the same values, so the copies never drift, and nothing but
gradients travels between devices. Knows towers and collectives; nothing of images or networks.
"""
import contextlib

import tensorflow.compat.v1 as tf

from cifar10 import devices
from cifar10.packing import pack
from cifar10.towers import build_towers, gradients_by_variable
from cifar10.updates import Step, Update

_GROUP_KEY = 1  # any number, alike in all members


class Replicated(Update):
    """A copy of the variables on each device; tower 0's are the primaries, the only ones that are saved."""
    recovers = False  # the members of a collective wait for each other for ever

    def build(self, tower_fn, make_optimizer, global_step):
        created = [[] for _ in self.devices]  # a tower's variables, slots included

        def variables(k):
            return self._own_variables(k, created[k])

        def tower(k, scope):
            scalars = tower_fn(k, scope)
            trainable = list(created[k])
            with tf.name_scope(None):  # what an optimizer keeps has the same name in every mode
                optimizer = make_optimizer()
            pairs = optimizer.compute_gradients(scalars['total_loss'], trainable, colocate_gradients_with_ops=True)
            return scalars, pairs, optimizer

        towers, tower_grads, optimizers = zip(*build_towers(self.devices, tower, variables))
        reduced = self._all_reduce(tower_grads)
        values = {variable.op.name: variable.read_value() for _, variable in reduced[0]}
        applied = []
        for k, device in enumerate(self.devices):
            read = [towers[k]['total_loss'], *(values.values() if k == 0 else [])]  # before any variable changes
            with tf.device(device), tf.name_scope('update_%d' % k), variables(k), tf.control_dependencies(read):
                applied.append(optimizers[k].apply_gradients(reduced[k], global_step if k == 0 else None))
        self._copies = [(copy, primary) for copies in created[1:] for copy, primary in zip(copies, created[0])]
        return Step(towers, reduced[0], values, [tf.group(applied)])

    def _own_variables(self, k, created):
        """Context in which tower k makes its variables: tower 0 plain ones, the others local, unsaved copies."""
        def creator(next_creator, **arguments):
            if k > 0:
                arguments.update(collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
            variable = next_creator(**arguments)
            created.append(variable)
            return variable

        context = contextlib.ExitStack()
        context.enter_context(tf.variable_creator_scope(creator))
        name = 'replica_%d' % k if k else tf.get_variable_scope()
        context.enter_context(tf.variable_scope(name, auxiliary_name_scope=False))
        return context

    def _all_reduce(self, tower_grads):
        """Replaces every tower's gradients by their mean over the towers.

        Args:
          tower_grads: K towers x N (gradient, variable) pairs, each tower with its own variables.

        Returns:
          The same, with gradients that are equal to the bit in all towers.
        """
        primaries = [variable for _, variable in tower_grads[0]]
        matched = gradients_by_variable([[(g, v) for (g, _), v in zip(pairs, primaries)] for pairs in tower_grads])
        used = [i for i, (gradients, _) in enumerate(matched) if gradients is not None]
        reduced = []
        for k, pairs in enumerate(tower_grads):
            with tf.device(self.devices[k]), tf.name_scope('all_reduce_%d' % k):
                gradients = [tf.convert_to_tensor(pairs[i][0]) for i in used]
                means = dict(zip(used, _mean_over_group(gradients, len(tower_grads), self.devices[k])))
            reduced.append([(means.get(i), variable) for i, (_, variable) in enumerate(pairs)])
        return reduced

    def after_restore(self):
        """Copies the primaries' values to the other replicas."""
        return tf.group(*[copy.assign(primary.read_value(), read_value=False) for copy, primary in self._copies])


def _mean_over_group(tensors, size, device):
    """Builds one member's part of an all-reduce.

    Each collective waits for the one before it in the same member: in two orders, two of them could
    wait for each other for ever.

    Args:
      tensors: float32 tensors; the same shapes in every member.
      size: members of the group.
      device: the member's device name.

    Returns:
      The tensors' means over the group.
    """
    packed, unpack = pack(tensors)
    means = []
    for i, tensor in enumerate(packed):
        with tf.control_dependencies(means[-1:]):
            means.append(tf.raw_ops.CollectiveReduce(
                input=tensor, group_size=size, group_key=_GROUP_KEY, instance_key=i + 1, merge_op='Add',
                final_op='Div', subdiv_offsets=[0], communication_hint=devices.communication(device)))
    return unpack(means)
