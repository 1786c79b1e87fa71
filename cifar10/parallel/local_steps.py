"""Local steps: each tower takes steps on its own copy of the variables; now and then the copies are averaged.

Between two averages nothing but reports travels, so a slow network costs little. This is local SGD (Stich 2019,
https://arxiv.org/abs/1805.09767). Two things make it learn as fast as the other modes:

- Averages are close together at the start of a run and become rarer, in the spirit of post-local SGD (Lin et al. 2020,
  https://arxiv.org/abs/1808.07217).
- The way from one average to the next has a momentum (SlowMo, https://arxiv.org/abs/1910.00643; DiLoCo,
  https://arxiv.org/abs/2311.08105).

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
    """What makes the towers' variables equal again, in a mode in which they drift apart. It is run between two steps.

    Attributes:
      follows: function that returns whether an average is on schedule after a step, given by its number.
      scheduled: the operation that is run after such a step.
      equalise: the operation that is run instead at any other time, such as at the end of a run.
      go_on: the operation that is run after an average on schedule, before the next step; and after a restore.
      steps: int64 scalar, how many steps were taken since an average, to be fetched or used together with one.
    """
    follows: Callable[[int], bool]
    scheduled: tf.Operation
    equalise: tf.Operation
    go_on: tf.Operation
    steps: tf.Tensor


class Local(CopiedVariables):
    """A copy of the variables for each tower, to which the tower applies its own gradients.

    Tower 0 has the primaries, the only copy that is saved. An average includes everything that a copy holds: trained
    variables, moving statistics and the optimizer's slots become their means over the towers. So all copies are equal
    afterwards, and a checkpoint that is saved then is complete.

    After an average on schedule, the trained variables also move on in the direction of the last averages. With s the
    values from which the copies started after the last average and m their mean now, the velocity v becomes
    OUTER_MOMENTUM * v + (m - s), and the copies start from m + OUTER_MOMENTUM * v. They do so only when the next step
    is taken, so that what is saved and evaluated is the mean.

    Args:
      local_steps: how many steps there are at most between two averages. With 1, averages have no momentum.
    """
    drifts = True

    def __init__(self, devices, local_steps=1):
        super().__init__(devices, devices.num_towers)
        self._local_steps = local_steps
        # Names of primaries:
        self._scaling = set()  # a loss scale and its count of good steps
        self._frozen = set()  # those that no update changes
        self._trained = []  # those that have gradients
        self._momentum = Copies(len(devices.groups))  # its state, for each group of devices

    def build(self, tower_fn, make_optimizer, global_step):
        step = super().build(tower_fn, make_optimizer, global_step)
        with tf.name_scope('average'):
            return step._replace(average=self._average(global_step))

    def optimizers(self, make_optimizer):
        optimizers = super().optimizers(make_optimizer)
        self._scaling = _names(self.copies.variables[0])  # what an optimizer makes before it has seen a gradient
        return optimizers

    def reduce(self, towers):
        first = towers[0]
        moved = [variable for value, variable in first.gradients if value is not None]
        moved += [each.variable for _, each in first.statistics + first.counters]
        moved += (first.follow_up or first.optimizer).variables()
        self._frozen = _names(self.copies.variables[0]) - self._scaling - _names(moved)  # the slots do not exist yet
        # A model of the user's own may have several gradients of a variable.
        self._trained = [*dict.fromkeys(variable.op.name for value, variable in first.gradients if value is not None)]
        # The first update also increments the global step, which any tower may read: it waits for all.
        return [Update(tower.gradients, tower.statistics, [tower] if tower.k else towers, device)
                for tower, device in zip(towers, self.copy_devices)]

    def copied(self):
        return [self.copies.variables, self._momentum.variables]

    def averages_after(self, step: int) -> bool:
        """Returns whether an average is on schedule after a step, given by its number."""
        # The interval is the largest power of two that is at most an eighth of the step, so that the number of the step
        # alone says whether an average follows.
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
        """Returns for each copy its variables that updates change: name of the primary -> variable."""
        names = [primary.op.name for primary in self.copies.variables[0]]
        return [{name: variable for name, variable in zip(names, copy) if name not in self._frozen}
                for copy in self.copies.variables]

    def _means(self):
        """Returns for each group of devices what its copies become: name of the primary -> tensor."""
        primaries, *_ = copies = self._copies()
        # A loss scale, with its count of good steps, becomes the smallest of any copy: a mean would be no power of two,
        # and would overflow where the smallest did.
        least = [name for name in primaries if name in self._scaling or not primaries[name].dtype.is_floating]
        averaged = [name for name in primaries if name not in least]
        values = [{name: _read(variable) for name, variable in copy.items()} for copy in copies]
        # What an optimizer keeps as float16 or bfloat16 is averaged as float32.
        means = means_over_towers([[tf.cast(copy[name], tf.float32) for name in averaged] for copy in values],
                                  self.devices)
        with tf.device('/cpu:0'):
            smallest = {name: _smallest([copy[name] for copy in values]) for name in least}
        return [{**smallest, **{name: tf.cast(mean, primaries[name].dtype.base_dtype)
                                for name, mean in zip(averaged, of_group)}} for of_group in means]

    def _assigned(self, values):
        """Returns the operations that give the copies of each group of devices their values, within constraints."""
        assigned = []
        for k, copy in enumerate(self._copies()):
            for name, value in values[self.devices.group_of(k)].items():
                with tf.device(copy[name].device):
                    constraint = copy[name].constraint or tf.identity
                    assigned.append(copy[name].assign(constraint(value), read_value=False))
        return assigned


class _Momentum:
    """The momentum of the averages of trained variables.

    Each group of devices has its state, so that nothing but the means travels. That of group 0 is saved. The `updates`
    are run in an average on schedule, which follows the step `now`.
    """

    def __init__(self, state, now):
        self._state = state  # the Copies with its variables
        with tf.device('/cpu:0'):
            averaged_at = tf.get_variable(AVERAGED_AT, [], tf.int64, tf.constant_initializer(-1), trainable=False)
            last = averaged_at.read_value()
            self._has_state = last >= 0  # not in the first average, after the first step or steps in another mode
            self._is_now = tf.equal(last, now)
            with tf.control_dependencies([self._has_state]):
                self.updates = [averaged_at.assign(now, read_value=False)]

    def start(self, group, variable, mean, name):
        """Returns what a group's variable, whose primary has a name, starts from after an average on schedule."""
        with tf.device(variable.device):
            with self._state.created(group):
                start, velocity = [tf.get_variable(f'{name}/{each}', variable.shape, tf.float32, tf.zeros_initializer(),
                                                   trainable=False) for each in (START, VELOCITY)]
            way = tf.where_v2(self._has_state, mean - start.read_value(), 0.0)
            faster = OUTER_MOMENTUM * velocity.read_value() + way
            self.updates += [velocity.assign(faster, read_value=False),
                             start.assign(mean + OUTER_MOMENTUM * faster, read_value=False)]
            return tf.where_v2(self._is_now, start.read_value(), variable.read_value())


def _names(variables):
    return {variable.op.name for variable in variables}


def _smallest(values):
    """Returns the smallest values, element by element; False is smaller than True."""
    return (tf.reduce_all if values[0].dtype == tf.bool else tf.reduce_min)(tf.stack(values), 0)


def _read(variable):
    with tf.device(variable.device):
        return variable.read_value()
