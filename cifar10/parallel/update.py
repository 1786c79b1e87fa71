"""The base class of the update modes: towers, their gradients, and the order of reads and updates.

A mode overrides the placement of variables and the reduction and application of gradients. A model is a function that
builds a tower.
"""
import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import MOVING_STATISTICS
from cifar10.parallel.devices import Devices
from cifar10.parallel.towers import build_towers, dense, mean_gradient, shared_variables
from cifar10.parallel.turns import Turns, TurnsOfParts


class Step(NamedTuple):
    """The graph of a training step.

    Attributes:
      scalars: for each tower the float32 scalars that `tower_fn` returned, copied to the CPU.
      gradients: the (gradient, variable) pairs that are applied to the saved variables.
      values: variable name -> its value before the update, for summaries.
      train_ops: one operation for each thread that runs steps; each run of an operation is an update.
      turns: the `Turns` of the towers; None if the mode has no turns.
      average: the `local_steps.Average`; None if all towers have the same variables after each step.
    """
    scalars: list
    gradients: list
    values: dict
    train_ops: list
    turns: Turns | None = None
    average: Any = None


class Computed(NamedTuple):
    """The results of a tower that computes its own gradients, such as a user's model.

    Attributes:
      scalars: dict of float32 scalars, among them 'total_loss'.
      gradients: (gradient, variable) pairs, float32, multiplied by the optimizer's loss scale, if any.
      statistics: (variable, value, keep) triples, as for `move`.
      others: further tensors that the update averages, and sparse gradients.
      follow_up: applies the means instead of the optimizer; or None.
    """
    scalars: dict
    gradients: list
    statistics: list
    others: Sequence = ()
    follow_up: Any = None


class Moving(NamedTuple):
    """Stands for an untrained variable whose values are averaged like gradients.

    Attributes:
      variable, keep: as for `move`.
    """
    variable: tf.Variable
    keep: float | None

    @property
    def name(self) -> str:
        return self.variable.name


class Tower(NamedTuple):
    """One tower, before its gradients are reduced.

    Attributes:
      k: index of the tower.
      scalars: dict of float32 scalars; on the CPU, once all towers are built.
      gradients: (gradient, variable) pairs; no gradient is sparse.
      statistics: (value, Moving) pairs: the values that untrained variables move towards, or that are added to them.
      counters: (value, Moving) pairs of integers, which are equal in all towers and are not averaged.
      optimizer: the optimizer that applies the gradients.
      others, follow_up: as in `Computed`.
    """
    k: int
    scalars: dict
    gradients: list
    statistics: list
    counters: list
    optimizer: tf.train.Optimizer
    others: Sequence = ()
    follow_up: Any = None


class Update(NamedTuple):
    """Gradients and statistics that are applied together.

    Attributes:
      gradients: (gradient, variable) pairs.
      statistics: (value, Moving) pairs.
      towers: the Towers that read these variables; the update waits for the end of their turns. The first tower's
        optimizer applies the gradients.
      device: the device on which the update runs.
      others: the means of the towers' `others`.
    """
    gradients: list
    statistics: list
    towers: Sequence[Tower]
    device: str
    others: Sequence = ()


class UpdateMode:
    """Turns the gradients of K towers into updates of the variables.

    Attributes:
      synchronous: whether one update consumes the batches of all towers.
      one_tower_per_device: whether each tower needs its own device.
      has_copies: whether devices or towers have copies of the variables. Then no server holds variables, and training
        does not continue when a lost device comes back.
      drifts: whether the copies drift apart between two runs of a `local_steps.Average`. The constructor then takes the
        maximum number of steps between them.
      uses_strategy: whether a tf.distribute strategy owns the variables and averages the gradients: on one machine,
        one replica per device, and only in the optimizer's `apply_gradients`.
    """
    synchronous = True
    one_tower_per_device = False
    has_copies = False
    drifts = False
    uses_strategy = False

    def __init__(self, devices: Devices):
        self.devices = devices
        self._turns: Turns
        self._optimizers: list[tf.train.Optimizer] = []

    @property
    def batches(self) -> int:
        """Number of towers whose batches one update consumes."""
        return self.devices.num_towers if self.synchronous else 1

    def build(self, tower_fn: Callable[[int, str], dict | Computed], make_optimizer: Callable[[], tf.train.Optimizer],
              global_step: tf.Variable) -> Step:
        """Builds the towers and their updates.

        A tower may add (variable, value, keep) triples to the collection MOVING_STATISTICS, as batch normalisation
        does. The values are averaged over the towers like gradients, and `move` updates the variables.

        Args:
          tower_fn: function (k, scope) -> dict of float32 scalars, among them 'total_loss', or a Computed; builds
            tower k.
          make_optimizer: function that returns a new optimizer.
          global_step: int64 variable, incremented by each update.
        """
        self._optimizers = self.optimizers(make_optimizer)
        self._turns = turns = (Turns if len(self.devices.groups[0]) == 1 else TurnsOfParts)(self.devices)
        built = build_towers(self.devices.tower_devices, functools.partial(self._tower, tower_fn), self.tower_variables)
        with tf.name_scope('update'):
            with tf.device('/cpu:0'):
                towers = [tower._replace(scalars=dict(zip(tower.scalars, tf.unstack(vector))))
                          for tower, vector in built]
            updates = self.reduce(towers)
            if towers[0].others:
                updates = self._with_others(updates, towers)
            values = _values_before(updates[0])
            applied = self._applied(updates, values, global_step)
            train_ops = [tf.group(applied)] if self.synchronous else applied
            return Step([tower.scalars for tower in towers], updates[0].gradients, values, train_ops, turns)

    def _tower(self, tower_fn, k, scope):
        """Builds tower k; returns (the Tower, its scalars as one vector)."""
        optimizer = self._optimizers[k]
        with tf.control_dependencies([self._turns.begin(k)]):
            computed = self.computed(scope, tower_fn(k, scope), optimizer, self.trained_variables(k))
        scalars, gradients, triples, others, follow_up = computed
        statistics, counters = list[tuple](), list[tuple]()
        for variable, value, keep in triples:
            (statistics if variable.dtype.is_floating else counters).append((value, Moving(variable, keep)))
        self._turns.end(k, [value for value, _ in gradients + statistics + counters] + [*others])
        return Tower(k, scalars, gradients, statistics, counters, optimizer, others, follow_up), stacked(scalars)

    def computed(self, scope: str, tower: dict | Computed, optimizer: tf.train.Optimizer,
                 variables: Sequence[tf.Variable]) -> Computed:
        """Returns the `Computed` of a tower, given the result of `tower_fn`; computes missing gradients."""
        if isinstance(tower, Computed):
            return tower
        gradients = dense(optimizer.compute_gradients(
            tower['total_loss'], variables, tf.train.Optimizer.GATE_NONE, colocate_gradients_with_ops=True))
        return Computed(dict(tower), gradients, tf.get_collection(MOVING_STATISTICS, scope))

    def optimizer_of(self, k: int) -> tf.train.Optimizer:
        """Returns the optimizer of tower k, for use in `tower_fn`."""
        return self._optimizers[k]

    def _with_others(self, updates, towers):
        """Returns the Updates with the mean of `others` over the towers whose batches each update consumes."""
        joined = []
        for update in updates:
            consumed = towers if self.synchronous and not self.drifts else update.towers[:1]
            with tf.device(update.device):
                joined.append(update._replace(others=[
                    _together(values) for values in zip(*[tower.others for tower in consumed])]))
        return joined

    def _applied(self, updates, values, global_step):
        """Applies each update after the turns of the towers that read its variables."""
        applied: list[tf.Operation] = []
        for update in updates:
            reads = [self._turns.ended[tower.k] for tower in update.towers]
            if not applied:  # the first update also waits for `values`, which must be from before it
                reads += values.values()
            # All updates of a synchronous step count as one.
            counter = None if applied and self.synchronous else global_step
            with tf.device(update.device), tf.control_dependencies(reads):
                applied.append(self.apply(update, counter))
        return applied

    def gate(self, k: int) -> Callable[[tf.Tensor, int, int], tf.Operation] | None:
        """Returns `Turns.gate` for the parts of tower k; None if the mode has no turns."""
        return functools.partial(self._turns.gate, k)

    def optimizers(self, make_optimizer: Callable[[], tf.train.Optimizer]) -> list:
        """Returns each tower's optimizer; by default all towers share one on the CPU."""
        with tf.device('/cpu:0'):
            return [make_optimizer()] * self.devices.num_towers

    def tower_variables(self, k: int) -> AbstractContextManager:
        """Returns the context in which tower k gets its variables."""
        return shared_variables(k)

    def trained_variables(self, k: int) -> list[tf.Variable]:
        """Returns the trained variables of tower k, once it is built."""
        return tf.trainable_variables()

    def reduce(self, towers: list) -> list:
        """Reduces the gradients and statistics of K Towers to a list of Updates."""
        raise NotImplementedError

    def apply(self, update: Update, counter: tf.Variable | None) -> tf.Operation:
        """Returns the operation of an update, which also increments `counter` unless it is None."""
        first = update.towers[0]
        moved = move([(moving.variable, value, moving.keep) for value, moving in update.statistics + first.counters])
        if first.follow_up:
            return tf.group(first.follow_up.apply(update.gradients, update.others, counter), *moved)
        return tf.group(first.optimizer.apply_gradients(update.gradients, counter), *moved)

    def copied(self) -> list[list[list[tf.Variable]]]:
        """Returns groups of copies that must be equal: each copy is a list of its variables, in the same order."""
        return []

    def scope(self) -> AbstractContextManager:
        """Returns the context in which the session must be created."""
        return contextlib.nullcontext()


def _together(values):
    """Returns the mean of the towers' tensors; the mean of sparse gradients is sparse, with the rows of all towers."""
    if not isinstance(values[0], tf.IndexedSlices):
        return mean_gradient(values)
    rows, indices = (tf.concat([getattr(value, name) for value in values], 0) for name in ('values', 'indices'))
    return tf.IndexedSlices(rows / len(values), indices, values[0].dense_shape)


def _values_before(update):
    """Returns the values of the variables before an update, by name.

    Each value stays on its variable's device, so it travels only for a summary. `read_value` would always copy it to
    the current device.
    """
    return {variable.op.name: variable.value() for _, variable in update.gradients}


def stacked(scalars: dict) -> tf.Tensor:
    """Returns a tower's scalars as one vector, because latency costs more than bandwidth."""
    with tf.device(scalars['total_loss'].device):  # with model parallelism, the tower's last device
        return tf.stack(list(scalars.values()), name='scalars')


def move(statistics: Iterable[tuple]) -> list:
    """Builds the updates of untrained variables; several updates of a variable run in the given order.

    Args:
      statistics: (variable, value, keep) triples; each sets the variable to keep * variable + (1 - keep) * value. If
        `keep` is None, the value is added.

    Returns:
      An operation for each variable.
    """
    moved: dict[str, tf.Operation] = {}
    for variable, value, keep in statistics:
        # The update reads the variable itself: a change computed from an older value would overshoot. A value without
        # `keep`, which its tower computed earlier, may overshoot in `async`.
        with tf.control_dependencies([moved[variable.name]] if variable.name in moved else []):
            moved[variable.name] = _moved(variable, value, keep)
    return list(moved.values())


def _moved(variable, value, keep):
    value = tf.cast(value, variable.dtype.base_dtype)
    if keep is None:
        return variable.assign_add(value)
    return variable.assign(value) if keep == 0 else variable.assign_add((1 - keep) * (value - variable.read_value()))
