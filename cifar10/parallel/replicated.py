"""Replicated variables: each device has its own copy, and gradients are all-reduced to their mean.

Every device applies the same mean to the same values, so the copies never drift apart, and only gradients
travel between devices.
"""
from cifar10.parallel.all_reduce import means_over_towers
from cifar10.parallel.copies import CopiedVariables
from cifar10.parallel.towers import gradients_by_variable
from cifar10.parallel.update import Update


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
