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
from cifar10.parallel.towers import build_towers, dense, shared_variables
from cifar10.parallel.turns import Turns


class Step(NamedTuple):
    """What a mode builds.

    Attributes:
      scalars: for each tower a dict of float32 scalars, by the names that `tower_fn` gave them.
      gradients: (gradient, variable) pairs, as they are applied to the variables that are saved.
      values: variable name -> its value before the update, for summaries.
      train_ops: one operation for each thread that runs steps; each run of one is an update.
    """
    scalars: list
    gradients: list
    values: dict
    train_ops: list


class Tower(NamedTuple):
    """One tower as it is built.

    Attributes:
      scalars: dict of float32 scalars.
      gradients: (gradient, variable) pairs; no gradient is sparse.
      statistics: (value, variable) pairs: where its batch would move variables that are not trained.
      keeps: the fraction of each of these variables that an update keeps.
      optimizer: made the gradients.
    """
    scalars: dict
    gradients: list
    statistics: list
    keeps: list
    optimizer: tf.train.Optimizer


class Update(NamedTuple):
    """Gradients and statistics that are applied together.

    Attributes:
      gradients: (gradient, variable) pairs.
      statistics: (value, variable) pairs.
      readers: numbers of the towers that read these variables: none changes before they have ended their turns.
      device: where the update runs.
    """
    gradients: list
    statistics: list
    readers: Sequence[int]
    device: str


class UpdateMode:
    """How K towers' gradients become updates of the variables.

    Attributes:
      devices: the `Devices` of the towers.
      synchronous: whether one update consumes the batches of all towers.
      recovers: whether training continues when a lost device comes back.
      one_tower_per_device: whether towers cannot share a device.
      spans_machines: whether the towers may be on several machines.
    """
    synchronous = True
    recovers = True
    one_tower_per_device = False
    spans_machines = True

    def __init__(self, devices: Devices):
        self.devices = devices

    @property
    def batches(self) -> int:
        """How many towers' batches one update consumes."""
        return len(self.devices.tower_devices) if self.synchronous else 1

    def build(self, tower_fn: Callable[[int, str], dict], make_optimizer: Callable[[], tf.train.Optimizer],
              global_step: tf.Variable, tower_statistics: Callable[[str], list] = lambda scope: []) -> Step:
        """Builds the towers and their updates.

        The statistics of a tower's batch are reduced over the towers as gradients are; then their variables move
        towards the result.

        Args:
          tower_fn: function (k, scope) -> dict of float32 scalars, among them 'total_loss'; builds tower k.
          make_optimizer: function that returns a new optimizer.
          global_step: int64 variable, incremented by each update.
          tower_statistics: function scope -> the tower's (variable, value, keep) triples, once it is built: an
            update makes the variable keep * variable + (1 - keep) * value.
        """
        optimizers, turns = self.optimizers(make_optimizer), Turns(self.devices)

        def tower(k, scope):
            with tf.control_dependencies([turns.begin(k)]):
                scalars = dict(tower_fn(k, scope))
                gradients = dense(optimizers[k].compute_gradients(
                    scalars['total_loss'], self.trainable_variables(k), colocate_gradients_with_ops=True))
            found = tower_statistics(scope)
            statistics = [(value, variable) for variable, value, _ in found]
            turns.end(k, gradients + statistics)
            return Tower(scalars, gradients, statistics, [keep for *_, keep in found], optimizers[k])

        towers = build_towers(self.devices.tower_devices, tower, self.tower_variables)
        with tf.name_scope('update'):
            updates, applied = self.reduce(towers), []
            with tf.device(updates[0].device):
                values = {variable.op.name: variable.read_value() for _, variable in updates[0].gradients}
            for k, update in enumerate(updates):
                # No variable changes until the towers that read it have ended their turns, and until what is shown
                # was read.
                reads = [turns.ended[i] for i in update.readers] + (list(values.values()) if k == 0 else [])
                with tf.device(update.device), tf.control_dependencies(reads):
                    applied.append(self.apply(k, towers[k], update, global_step))
            return Step([tower.scalars for tower in towers], updates[0].gradients, values, self.train_ops(applied))

    def optimizers(self, make_optimizer: Callable[[], tf.train.Optimizer]) -> list:
        """Returns each tower's optimizer; here one for all, on the CPU."""
        with tf.device('/cpu:0'):
            return [make_optimizer()] * len(self.devices.tower_devices)

    def tower_variables(self, k: int) -> AbstractContextManager:
        """Returns the context in which tower k makes its variables."""
        return shared_variables(k)

    def trainable_variables(self, k: int) -> list | None:
        """Returns the variables that tower k's gradients are of; None: all in the graph's collection."""
        del k
        return None

    def reduce(self, towers: list) -> list:
        """Returns the Updates that the gradients and the statistics of K Towers become."""
        raise NotImplementedError

    def apply(self, k: int, tower: Tower, update: Update, global_step: tf.Variable) -> tf.Operation:
        """Builds the k-th update with tower k's optimizer; returns its operation."""
        # The updates of a synchronous step count once.
        counted = global_step if k == 0 or not self.synchronous else None
        moved = [move(variable, value, keep) for (value, variable), keep in zip(update.statistics, tower.keeps)]
        return tf.group(tower.optimizer.apply_gradients(update.gradients, counted), *moved)

    def train_ops(self, applied: list) -> list:
        """Returns the train operations, one for each thread that runs steps, of the updates' operations."""
        return [tf.group(applied)] if self.synchronous else applied

    def scope(self) -> AbstractContextManager:
        """Returns the context in which the session must be made."""
        return contextlib.nullcontext()


def move(variable: tf.Variable, value: tf.Tensor, keep: float) -> tf.Tensor:
    """Makes a variable keep * variable + (1 - keep) * value; returns the operation that does."""
    # It is read here, where it changes: the change from an older value would overshoot.
    return variable.assign_add((1 - keep) * (value - variable.read_value()))
