"""Replicated variables: each device has its own copy, and gradients are all-reduced to their mean.

No device has the gradients of all towers, so `means_over_towers` replaces `average_gradients`. Every device applies the
same mean to the same values, so the copies never drift apart. Only gradients and moving statistics travel between
devices. `Copies` and `CopiedVariables` create the copies and assign them to towers; mode `local` uses both, too.
"""
import contextlib
from collections.abc import Iterator

import tensorflow.compat.v1 as tf

from cifar10.parallel.all_reduce import means_over_towers
from cifar10.parallel.devices import Devices
from cifar10.parallel.towers import gradients_by_variable
from cifar10.parallel.update import Update, UpdateMode


class Copies:
    """Creates the variables of several copies.

    Copy 0 has the primaries, which have plain names and are saved. The other copies are local variables, named
    `replica_<number>/...`, whose initial values are the values of the primaries.

    Attributes:
      variables: for each copy the variables created so far, slots included; all copies create them in the same order.
      trained: for each copy its trained variables.
    """

    def __init__(self, count: int):
        self.variables: list[list[tf.Variable]] = [[] for _ in range(count)]
        self.trained: list[list[tf.Variable]] = [[] for _ in range(count)]
        self._primary_values: list[tf.Tensor] = []  # reads of copy 0's variables, in order of creation

    @contextlib.contextmanager
    def created(self, copy: int, reuse: bool = False) -> Iterator[None]:
        """Context in which `tf.get_variable` creates or returns the variables of one copy.

        Args:
          copy: index of the copy.
          reuse: whether `tf.get_variable` returns existing variables of the copy.
        """
        def creator(next_creator, **arguments):
            is_trained = arguments.get('trainable') is not False
            if copy > 0:
                # Local variables are initialised after the primaries are initialised or restored, so a restore updates
                # all copies. They must not be trainable: TensorFlow would add them to a second collection.
                made = len(self.variables[copy])
                if made == len(self._primary_values):
                    raise ValueError(f"copy {copy} has the variable {arguments['name']}, but copy 0 does not; create "
                                     'the same variables in each tower')
                arguments.update(initial_value=self._primary_values[made], trainable=False,
                                 collections=[tf.GraphKeys.LOCAL_VARIABLES])
            variable = next_creator(**arguments)
            self.variables[copy].append(variable)
            if is_trained:
                self.trained[copy].append(variable)
            if copy == 0:
                with tf.control_dependencies(None):
                    self._primary_values.append(variable.read_value())
            return variable

        scope = f'replica_{copy}' if copy else tf.get_variable_scope()
        with tf.variable_creator_scope(creator), tf.variable_scope(scope, reuse=reuse, auxiliary_name_scope=False):
            yield


class CopiedVariables(UpdateMode):
    """An update mode with several copies of the variables: towers c, c + count, c + 2 count, ... use copy c.

    Copy c and its optimizer's slots are on the device of tower c.

    Attributes:
      copy_devices: the device of each copy.
    """
    has_copies = True  # made equal by collectives, whose members would wait forever for a lost member

    def __init__(self, devices: Devices, count: int):
        super().__init__(devices)
        self.copies = Copies(count)
        self.copy_devices = devices.tower_devices[:count]

    def optimizers(self, make_optimizer):
        optimizers = []
        for copy, device in enumerate(self.copy_devices):
            with tf.device(device), self.tower_variables(copy):
                optimizers.append(make_optimizer())
        return [optimizers[self._copy_of(k)] for k in range(self.devices.num_towers)]

    def tower_variables(self, k):
        copy = self._copy_of(k)
        return self.copies.created(copy, reuse=k != copy)

    def trained_variables(self, k):
        return self.copies.trained[self._copy_of(k)]

    def apply(self, update, counter):
        with self.tower_variables(update.towers[0].k):  # each copy has its own slots
            return super().apply(update, counter)

    def copied(self):
        return [self.copies.variables]

    def _copy_of(self, k):
        return k % len(self.copies.variables)


class Replicated(CopiedVariables):
    """A copy of the variables for each group of devices, shared by the group's towers.

    Group 0 has the primaries, the only copy that is saved.
    """

    def __init__(self, devices):
        super().__init__(devices, len(devices.groups))

    def reduce(self, towers):
        tower_grads = [tower.gradients + tower.statistics for tower in towers]
        primaries = [variable for _, variable in tower_grads[0]]
        gradients_by_variable([[(gradient, primary) for (gradient, _), primary in zip(pairs, primaries)]
                               for pairs in tower_grads])  # checks that the towers match
        averaged = means_over_towers(
            [[gradient for gradient, _ in pairs if gradient is not None] for pairs in tower_grads], self.devices)
        num_gradients = len(towers[0].gradients)
        updates = []
        for group, device in enumerate(self.copy_devices):
            means = iter(averaged[group])
            pairs = [(None if gradient is None else next(means), variable) for gradient, variable in tower_grads[group]]
            sharing = towers[group::len(self.devices.groups)]
            updates.append(Update(pairs[:num_gradients], pairs[num_gradients:], sharing, device))
        return updates
