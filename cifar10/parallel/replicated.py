"""Replicated variables: each device has its own copy, and gradients are all-reduced to their mean.

No device has the gradients of all towers, so `average_gradients` cannot average them: `means_over_towers` gives each
device the mean. Every device applies the same mean to the same values, so the copies never drift apart, and only
gradients and what else is averaged, such as moving statistics, travel between devices. `Copies` and `CopiedVariables`
create the variables of a copy and say which towers use it; `local`, which keeps the copies equal in another way, uses
them too.
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

    Copy 0 has the primaries: plain names, and the only ones that are saved. The other copies are local variables, named
    `replica_<number>/...`, which start with the values of the primaries.

    Attributes:
      variables: for each copy the variables created so far, slots included; all copies create them in the same order.
      trained: for each copy those that are trained.
    """

    def __init__(self, count: int):
        self.variables = [[] for _ in range(count)]
        self.trained = [[] for _ in range(count)]
        self._primary_values = []  # reads of copy 0's variables, in the order of their creation

    @contextlib.contextmanager
    def created(self, copy: int, reuse: bool = False) -> Iterator[None]:
        """Context in which one copy gets its variables.

        Args:
          copy: its number.
          reuse: whether `tf.get_variable` returns variables that the copy has already.
        """
        def creator(next_creator, **arguments):
            is_trained = arguments.get('trainable') is not False
            if copy > 0:
                # Local variables are initialised after the primaries were initialised or restored, so the copies
                # follow a restore by themselves. They must not be trainable: those are in another collection, too.
                made = len(self.variables[copy])
                if made == len(self._primary_values):
                    raise ValueError(f"copy {copy} has the variable {arguments['name']}, and copy 0 does not; get the "
                                     'same variables in each tower')
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
    """An update mode with several copies of the variables: the towers c, c + count, c + 2 count, ... use copy c.

    It is on the device of tower c, with the slots of its optimizer.

    Attributes:
      copy_devices: the device of each copy.
    """
    has_copies = True  # which become alike through collectives, whose members would wait for a lost one forever

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
        with self.tower_variables(update.towers[0].k):  # each copy has slots of its own
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
                               for pairs in tower_grads])  # which checks that they match
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
