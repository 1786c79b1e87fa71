"""Local steps: each tower takes steps on its own copy of the variables; now and then the copies are averaged.

Between two averages nothing but reports travels, so a slow network costs little. This is local SGD (Stich 2019,
https://arxiv.org/abs/1805.09767). Copies belong to towers, not to devices, so a run does not depend on its hardware.
This file does not know how often copies are averaged: the training loop decides that.
"""
import tensorflow.compat.v1 as tf

from cifar10.parallel.all_reduce import means_over_towers
from cifar10.parallel.copies import CopiedVariables
from cifar10.parallel.update import Average, Update


class Local(CopiedVariables):
    """A copy of the variables for each tower, to which the tower applies its own gradients.

    Tower 0 has the primaries, the only copy that is saved. An average includes everything that a copy holds: trained
    variables, moving statistics and the optimizer's slots become their means over the towers. So all copies are equal
    afterwards, and a checkpoint that is saved then is complete.
    """
    drifts = True

    def __init__(self, devices):
        super().__init__(devices, devices.num_towers)
        self._num_scaling = 0  # how many variables the optimizer of a copy makes before it has seen a gradient
        self._frozen = set()  # numbers of the variables of a copy that no update changes

    def build(self, tower_fn, make_optimizer, global_step, **options):
        step = super().build(tower_fn, make_optimizer, global_step, **options)
        with tf.name_scope('average'):
            return step._replace(average=self._average(global_step))

    def optimizers(self, make_optimizer):
        optimizers = super().optimizers(make_optimizer)
        self._num_scaling = len(self.copies.variables[0])
        return optimizers

    def reduce(self, towers):
        # The first update also increments the global step, which any tower may read: it waits for all.
        everyone = range(len(towers))
        moved = {variable.op for value, variable in towers[0].gradients + towers[0].statistics if value is not None}
        self._frozen = {i for i, variable in enumerate(self.copies.variables[0])  # the slots do not exist yet
                        if i >= self._num_scaling and variable.op not in moved}
        return [Update(tower.gradients, tower.statistics, [k] if k else everyone, device)
                for k, (tower, device) in enumerate(zip(towers, self.copy_devices))]

    def _average(self, global_step):
        """Builds the Average, now that the slots exist too."""
        with tf.device('/cpu:0'):
            # As a local variable it starts at the restored step, which was followed by an average.
            averaged_at = tf.Variable(global_step.read_value(), trainable=False, name='averaged_at',
                                      collections=[tf.GraphKeys.LOCAL_VARIABLES])
            now = global_step.read_value()
            steps = now - averaged_at.read_value()
            with tf.control_dependencies([steps]):
                noted = averaged_at.assign(now, read_value=False)
        return Average(tf.group(*self._equalised(), noted), steps, self.copies.variables)

    def _equalised(self):
        """Returns the operations that give all copies the same values."""
        primaries, trained = self.copies.variables[0], {variable.op for variable in self.copies.trainable[0]}
        # A loss scale, with its count of good steps, becomes the smallest of any copy: a mean would be no power of two,
        # and would overflow where the smallest did. Only these, and no slots, exist before the first gradient.
        changed = [i for i in range(len(primaries)) if i not in self._frozen]
        least = [i for i in changed if i < self._num_scaling or not primaries[i].dtype.is_floating]
        means = [i for i in changed if i not in least]
        reads = [{i: _read(copy[i]) for i in changed} for copy in self.copies.variables]
        # A second moment of Adam that became 0 would make a step huge; weights matter as much as they are large.
        precise = [j for j, i in enumerate(means) if primaries[i].op not in trained]
        averaged = means_over_towers([[read[i] for i in means] for read in reads], self.devices, precise)
        with tf.device('/cpu:0'):
            smallest = {i: tf.reduce_min(tf.stack([read[i] for read in reads]), 0) for i in least}
        assigned = []
        for k, copy in enumerate(self.copies.variables):
            values = {**smallest, **dict(zip(means, averaged[self.devices.group_of(k)]))}
            for i, value in values.items():
                with tf.device(copy[i].device):
                    assigned.append(copy[i].assign(value, read_value=False))
        return assigned


def _read(variable):
    """Returns the value of a variable, read on its device."""
    with tf.device(variable.device):
        return variable.read_value()
