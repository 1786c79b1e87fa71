"""Local steps: each tower trains its own copy of the variables, and the copies are averaged periodically.

Only reports travel between two averages, so a slow network costs little. This is local SGD (Stich 2019,
https://arxiv.org/abs/1805.09767). Two measures make it learn as fast as the other modes:

- Averages are frequent at the start of a run and become rarer, in the spirit of post-local SGD (Lin et al. 2020,
  https://arxiv.org/abs/1808.07217).
- Outer updates use momentum (SlowMo, https://arxiv.org/abs/1910.00643; DiLoCo, https://arxiv.org/abs/2311.08105).

Copies belong to towers, not to devices, so a run does not depend on its hardware.
"""
from collections.abc import Callable
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import AVERAGED_AT, START, VELOCITY
from cifar10.parallel.all_reduce import means_over_towers
from cifar10.parallel.replicated import CopiedVariables, Copies
from cifar10.parallel.update import Update

# Nesterov momentum of the averages. 0.5 trained best of 0.3, 0.5, 0.8 and 0.9.
OUTER_MOMENTUM = 0.5


class Average(NamedTuple):
    """The operations that make drifted copies equal again, between two steps.

    Attributes:
      follows: function (step number) -> whether an average is scheduled after this step.
      scheduled: operation to run after such a step.
      equalise: operation to run at any other time, such as the end of a run.
      go_on: operation to run after a scheduled average, before the next step; and after a restore.
      steps: int64 scalar, number of steps since the last average. Fetch or use it in the same session call as an
        average.
    """
    follows: Callable[[int], bool]
    scheduled: tf.Operation
    equalise: tf.Operation
    go_on: tf.Operation
    steps: tf.Tensor


class Local(CopiedVariables):
    """A copy of the variables for each tower, to which the tower applies its own gradients.

    Tower 0 has the primaries, the only saved copy. An average replaces trained variables, moving statistics and the
    optimizer's slots with their means over the towers. So all copies are equal afterwards, and a checkpoint saved then
    is complete.

    After a scheduled average, the trained variables also move in the direction of the last averages. With s the
    starting values after the last average and m the mean now, the velocity v becomes OUTER_MOMENTUM * v + (m - s), and
    the copies start from m + OUTER_MOMENTUM * v. This move is part of the next step, so checkpoints and evaluations
    use the mean.

    Args:
      local_steps: maximum number of steps between two averages. With 1, averages have no momentum.
    """
    drifts = True

    def __init__(self, devices, local_steps=1):
        super().__init__(devices, devices.num_towers)
        self._local_steps = local_steps
        # Names of primaries:
        self._scaling = set()  # a loss scale and its count of good steps
        self._frozen = set()  # without updates
        self._trained = []  # with gradients
        self._momentum = Copies(len(devices.groups))  # the state of the momentum, for each group of devices

    def build(self, tower_fn, make_optimizer, global_step):
        step = super().build(tower_fn, make_optimizer, global_step)
        with tf.name_scope('average'):
            return step._replace(average=self._average(global_step))

    def optimizers(self, make_optimizer):
        optimizers = super().optimizers(make_optimizer)
        self._scaling = _names(self.copies.variables[0])  # variables that an optimizer creates before its slots
        return optimizers

    def reduce(self, towers):
        first = towers[0]
        moved = [variable for value, variable in first.gradients if value is not None]
        moved += [each.variable for _, each in first.statistics + first.counters]
        moved += (first.follow_up or first.optimizer).variables()
        self._frozen = _names(self.copies.variables[0]) - self._scaling - _names(moved)  # the slots do not exist yet
        # A user's model may have several gradients of a variable.
        self._trained = [*dict.fromkeys(variable.op.name for value, variable in first.gradients if value is not None)]
        # The first update waits for all towers: it increments the global step, which any tower may read.
        return [Update(tower.gradients, tower.statistics, [tower] if tower.k else towers, device)
                for tower, device in zip(towers, self.copy_devices)]

    def copied(self):
        return [self.copies.variables, self._momentum.variables]

    def averages_after(self, step: int) -> bool:
        """Returns whether an average is scheduled after a step, given its number."""
        # The interval is the largest power of two up to an eighth of the step, a function of the step number alone.
        interval = 2 ** (max(step // 8, 1).bit_length() - 1)
        return step % min(interval, self._local_steps) == 0 or step % self._local_steps == 0

    def _average(self, global_step):
        with tf.device('/cpu:0'):
            # Starts at the restored step: checkpoints are only written right after an average.
            averaged_at = tf.Variable(global_step.read_value(), trainable=False, name='averaged_at',
                                      collections=[tf.GraphKeys.LOCAL_VARIABLES])
            now = global_step.read_value()
            steps = now - averaged_at.read_value()
            with tf.control_dependencies([steps]):
                noted = averaged_at.assign(now, read_value=False)
        means = self._means()
        equalise = tf.group(*self._assigned(means), noted)
        scheduled, go_on = equalise, tf.no_op()
        if self._local_steps > 1:
            momentum = _Momentum(self._momentum, now)
            starts = [{name: momentum.start(group, copy[name], mean[name], name) for name in self._trained}
                      for group, (copy, mean) in enumerate(zip(self._copies(), means))]
            scheduled = tf.group(equalise, *momentum.updates)
            go_on = tf.group(*self._assigned(starts))
        return Average(self.averages_after, scheduled, equalise, go_on, steps)

    def _copies(self):
        """Returns a dict for each copy, without frozen variables: name of the primary -> variable."""
        names = [primary.op.name for primary in self.copies.variables[0]]
        return [{name: variable for name, variable in zip(names, copy) if name not in self._frozen}
                for copy in self.copies.variables]

    def _means(self):
        """Returns a dict for each group of devices: name of the primary -> mean."""
        primaries, *_ = copies = self._copies()
        # A loss scale and its count of good steps become the minimum over the copies: a mean would not be a power of
        # two, and it would overflow in the copy with the minimum.
        least = [name for name in primaries if name in self._scaling or not primaries[name].dtype.is_floating]
        averaged = [name for name in primaries if name not in least]
        values = [{name: _read(variable) for name, variable in copy.items()} for copy in copies]
        # Slots of type float16 or bfloat16 are averaged as float32.
        means = means_over_towers([[tf.cast(copy[name], tf.float32) for name in averaged] for copy in values],
                                  self.devices)
        with tf.device('/cpu:0'):
            smallest = {name: _smallest([copy[name] for copy in values]) for name in least}
        return [{**smallest, **{name: tf.cast(mean, primaries[name].dtype.base_dtype)
                                for name, mean in zip(averaged, group_means)}} for group_means in means]

    def _assigned(self, values):
        """Returns the operations that assign each group's values to its copies, after applying constraints."""
        assigned = []
        for k, copy in enumerate(self._copies()):
            for name, value in values[self.devices.group_of(k)].items():
                with tf.device(copy[name].device):
                    constraint = copy[name].constraint or tf.identity
                    assigned.append(copy[name].assign(constraint(value), read_value=False))
        return assigned


class _Momentum:
    """The outer momentum of the trained variables.

    Each group of devices has its own state, so only the means travel. The state of group 0 is saved. A scheduled
    average, which follows step `now`, runs the `updates`.
    """

    def __init__(self, state, now):
        self._state = state  # Copies
        with tf.device('/cpu:0'):
            averaged_at = tf.get_variable(AVERAGED_AT, [], tf.int64, tf.constant_initializer(-1), trainable=False)
            last = averaged_at.read_value()
            self._has_state = last >= 0  # false in the run's first average, or in the first after another mode
            self._is_now = tf.equal(last, now)
            with tf.control_dependencies([self._has_state]):
                self.updates = [averaged_at.assign(now, read_value=False)]

    def start(self, group, variable, mean, name):
        """Returns the starting value of a group's variable after a scheduled average; `name` is the primary's name."""
        with tf.device(variable.device):
            with self._state.created(group):
                start, velocity = [tf.get_variable(f'{name}/{slot}', variable.shape, tf.float32, tf.zeros_initializer(),
                                                   trainable=False) for slot in (START, VELOCITY)]
            progress = tf.where_v2(self._has_state, mean - start.read_value(), 0.0)
            new_velocity = OUTER_MOMENTUM * velocity.read_value() + progress
            self.updates += [velocity.assign(new_velocity, read_value=False),
                             start.assign(mean + OUTER_MOMENTUM * new_velocity, read_value=False)]
            return tf.where_v2(self._is_now, start.read_value(), variable.read_value())


def _names(variables):
    return {variable.op.name for variable in variables}


def _smallest(values):
    """Returns the element-wise minimum; False is less than True."""
    return (tf.reduce_all if values[0].dtype == tf.bool else tf.reduce_min)(tf.stack(values), 0)


def _read(variable):
    with tf.device(variable.device):
        return variable.read_value()
