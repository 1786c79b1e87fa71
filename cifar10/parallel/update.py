"""The skeleton of the update modes: towers, their gradients, the order of reads and updates.

A mode overrides where a tower's variables live, how the towers' gradients are reduced, and how they are
applied. Any model can be built on this: nothing here knows images or networks.
"""
import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.parallel.devices import Devices
from cifar10.parallel.towers import build_towers, shared_variables
from cifar10.parallel.turns import Turns


class Step(NamedTuple):
    """What a mode builds.

    Attributes:
      towers: for each tower a dict of float32 scalars, by the names that `tower_fn` gave them.
      gradients: (gradient, variable) pairs, as they are applied to the variables that are saved.
      values: variable name -> its value before the update, for summaries.
      train_ops: one operation for each thread that runs steps; each run of one is an update.
    """
    towers: list
    gradients: list
    values: dict
    train_ops: list


class Tower(NamedTuple):
    """One tower as it is built.

    Attributes:
      scalars: dict of float32 scalars.
      gradients: (gradient, variable) pairs.
      changes: (change, variable) pairs, of variables that are not trained.
      optimizer: made the gradients.
    """
    scalars: dict
    gradients: list
    changes: list
    optimizer: tf.train.Optimizer


class Update(NamedTuple):
    """Gradients that are applied together.

    Attributes:
      gradients: (gradient, variable) pairs, then the (change, variable) pairs.
      readers: numbers of the towers that read these variables: none changes before they have ended their turns.
      device: where the update runs.
    """
    gradients: list
    readers: Sequence[int]
    device: str


class UpdateMode:
    """How K towers' gradients become updates of the variables.

    Attributes:
      devices: the `Devices` of the towers.
      synchronous: whether one update consumes the batches of all towers.
      recovers: whether training continues when a lost device comes back.
      one_tower_per_device: whether towers cannot share a device.
    """
    synchronous = True
    recovers = True
    one_tower_per_device = False

    def __init__(self, devices: Devices):
        self.devices = devices

    @property
    def batches(self) -> int:
        """How many towers' batches one update consumes."""
        return len(self.devices.towers) if self.synchronous else 1

    def build(self, tower_fn: Callable[[int, str], dict], make_optimizer: Callable[[], tf.train.Optimizer],
              global_step: tf.Variable, tower_changes: Callable[[str], list] = lambda scope: []) -> Step:
        """Builds the towers and their updates.

        What a tower changes of variables that are not trained, such as moving statistics, takes the way of its
        gradients: it is reduced over the towers in the same manner, then added once.

        Args:
          tower_fn: function (k, scope) -> dict of float32 scalars, among them 'total_loss'; builds tower k.
          make_optimizer: function that returns a new optimizer.
          global_step: int64 variable, incremented by each update.
          tower_changes: function scope -> the tower's (change, variable) pairs, once it is built.
        """
        optimizers, turns = self.optimizers(make_optimizer), Turns(self.devices)

        def tower(k, scope):
            with tf.control_dependencies([turns.begin(k)]):
                scalars = dict(tower_fn(k, scope))
                gradients = optimizers[k].compute_gradients(
                    scalars['total_loss'], self.trainable_variables(k), colocate_gradients_with_ops=True)
            changes = tower_changes(scope)
            turns.end(k, gradients + changes)
            return Tower(scalars, gradients, changes, optimizers[k])

        towers = build_towers(self.devices.towers, tower, self.tower_variables)
        with tf.name_scope('update'):
            updates, applied = self.reduce([tower.gradients + tower.changes for tower in towers]), []
            count = len(towers[0].gradients)
            with tf.device(updates[0].device):
                values = {variable.op.name: variable.read_value() for _, variable in updates[0].gradients[:count]}
            for k, update in enumerate(updates):
                # No variable changes until the towers that read it have ended their turns, and until what is shown
                # was read.
                reads = [turns.ended[i] for i in update.readers] + (list(values.values()) if k == 0 else [])
                with tf.device(update.device), tf.control_dependencies(reads):
                    changed = [variable.assign_add(change) for change, variable in update.gradients[count:]]
                    step = self.apply(k, towers[k], update.gradients[:count], global_step)
                    applied.append(tf.group(step, *changed))
            return Step([tower.scalars for tower in towers], updates[0].gradients[:count], values,
                        self.train_ops(applied))

    def optimizers(self, make_optimizer: Callable[[], tf.train.Optimizer]) -> list:
        """Returns each tower's optimizer; here one for all, on the CPU."""
        with tf.device('/cpu:0'):
            return [make_optimizer()] * len(self.devices.towers)

    def tower_variables(self, k: int) -> AbstractContextManager:
        """Returns the context in which tower k makes its variables."""
        return shared_variables(k)

    def trainable_variables(self, k: int) -> list | None:
        """Returns the variables that tower k's gradients are of; None: all in the graph's collection."""
        del k
        return None

    def reduce(self, tower_grads: list) -> list:
        """Returns the Updates that the towers' gradients become.

        Args:
          tower_grads: K towers x N (gradient, variable) pairs.
        """
        raise NotImplementedError

    def apply(self, k: int, tower: Tower, gradients: list, global_step: tf.Variable) -> tf.Operation:
        """Builds the k-th update with tower k's optimizer; returns its operation."""
        # The updates of a synchronous step count once.
        return tower.optimizer.apply_gradients(gradients, global_step if k == 0 or not self.synchronous else None)

    def train_ops(self, applied: list) -> list:
        """Returns the train operations, one for each thread that runs steps, of the updates' operations."""
        return [tf.group(applied)] if self.synchronous else applied

    def scope(self) -> AbstractContextManager:
        """Returns the context in which the session must be made."""
        return contextlib.nullcontext()
