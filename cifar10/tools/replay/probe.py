"""Probes: losses, gradients and operations inside a step, tower by tower.

The towers are built once more, in a graph of their own and all on one device, and compute from the variables that a
step began with and from its batches. Nothing is updated, so a look changes no variable.
"""
import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.graphs import EXAMPLES_SEEN, LOSS_SCALE
from cifar10.tools.replay.rerun import Taken
from cifar10.training import inside
from cifar10.training.inside import Batch
from cifar10.training.plan import Plan
from cifar10.training.run import Run

_HUGE = 1e6  # norm of a variable that has blown up: products of such values overflow soon


class TowerProbe(NamedTuple):
    """What happened in a tower.

    Attributes:
      loss: its total loss.
      cross_entropies: float32 [n], of each example.
      examples: int64 [n], the indices of the examples in the data set.
      labels, predictions: int [n], the classes that the examples have and that the network gives them.
      gradient: the norm of all its gradients together.
      bad_gradients: name -> (how many values are not finite, of how many) of its gradients.
    """
    loss: float
    cross_entropies: np.ndarray
    examples: np.ndarray
    labels: np.ndarray
    predictions: np.ndarray
    gradient: float
    bad_gradients: dict[str, tuple[int, int]]


class Change(NamedTuple):
    """What a step did to a variable.

    Attributes:
      name: of the variable.
      value: its norm before the step.
      gradient: the norm of its mean gradient; None for a variable that is not trained.
      update: the norm of its change.
    """
    name: str
    value: float
    gradient: float | None
    update: float

    @property
    def ratio(self) -> float | None:
        """The norm of the change, relative to the norm of the value; None where the value is 0."""
        return self.update / self.value if self.value else None


class Step(NamedTuple):
    """The summary of a replayed step.

    Attributes:
      number: of the step.
      losses: float32 [towers].
      figures: of its record in metrics.jsonl.
      towers: what happened in each.
      gradient: the norm of the mean gradient of all variables.
      changes: what it did to each variable of the network.
      bad_before, bad_after: name -> (how many values are not finite, of how many) of variables before and after it.
      loss_scale: by which the loss was multiplied, or None.
    """
    number: int
    losses: np.ndarray
    figures: dict[str, float]
    towers: list[TowerProbe]
    gradient: float
    changes: list[Change]
    bad_before: dict[str, tuple[int, int]]
    bad_after: dict[str, tuple[int, int]]
    loss_scale: float | None

    @property
    def largest(self) -> Change | None:
        """The largest change of a trained variable, relative to the variable; None if all were 0."""
        return max((change for change in self.trained if change.value), default=None,
                   key=lambda change: badness(change.ratio))

    @property
    def trained(self) -> list[Change]:
        """The changes of the trained variables. Moving statistics follow the data, so theirs are large and harmless."""
        return [change for change in self.changes if change.gradient is not None]

    @property
    def ratio(self) -> float:
        """The norm of the change of all trained variables, relative to the norm of their values."""
        value = norm([change.value for change in self.trained])
        return norm([change.update for change in self.trained]) / value if value else math.nan

    @property
    def huge(self) -> list[Change]:
        """The changes of trained variables that were very large before the step."""
        return [change for change in self.trained if not change.value < _HUGE]

    @property
    def bad_made(self) -> dict[str, tuple[int, int]]:
        """The part of `bad_after` that the step caused; other values were not finite before, or are so by design."""
        return {name: (count, size) for name, (count, size) in self.bad_after.items()
                if count > self.bad_before.get(name, (0, size))[0]}

    @property
    def is_finite(self) -> bool:
        """Whether all losses and gradients are finite, and the step made no variable not finite."""
        return self.bad_tower is None and not self.bad_made

    @property
    def was_skipped(self) -> bool:
        """Whether the step left the variables as they were because gradients overflowed, as they may in fp16."""
        return self.loss_scale is not None and bool(self.bad_gradients) and not (self.bad_losses or self.bad_made)

    @property
    def bad_losses(self) -> list[int]:
        """The towers whose loss is not finite."""
        return [k for k, loss in enumerate(self.losses) if not math.isfinite(loss)]

    @property
    def bad_gradients(self) -> list[int]:
        """The towers that have a gradient that is not finite."""
        return [k for k, tower in enumerate(self.towers) if tower.bad_gradients]

    @property
    def bad_tower(self) -> int | None:
        """The first tower whose loss is not finite, or else whose gradients are not; None if there is none."""
        return next(iter(self.bad_losses + self.bad_gradients), None)


class Origin(NamedTuple):
    """The first operation of a tower whose result is not finite though its inputs are.

    Attributes:
      operation: its name and, in brackets, its type.
      examples: places in the batch of the examples for which it is not; None if all, or if its result has no row for
        each.
      inputs: the smallest and the largest value of each of its inputs.
    """
    operation: str
    examples: list[int] | None
    inputs: list[tuple[float, float]]


class Probe:
    """A graph of all towers, for steps of one plan, in a session that is open until `close`.

    Args:
      plan: of the steps.
    """

    def __init__(self, plan: Plan):
        self._run = Run(inside.on_one_device(plan), is_new=False, build=inside.build)
        self._inside = self._run.graph
        self._open = contextlib.ExitStack()
        self._open.enter_context(self._run.opened(is_final=False))  # `origin` adds to the graph

    def at(self, taken: Taken) -> Step:
        """Returns what happened in a step, which was taken with its variables."""
        towers = []
        mean = {}  # of the towers' gradients
        for k, fetches in enumerate(self._inside.towers):  # one at a time: memory holds the activations of one
            batch = self.batch(taken, k)
            found = self._run.session.run(fetches, self._feed(taken, k, batch))
            gradients = found.pop('gradients')
            for name, gradient in gradients.items():
                mean[name] = mean.get(name, 0) + gradient.astype(np.float64) / len(self._inside.towers)
            towers.append(TowerProbe(
                **found, labels=batch.labels, examples=batch.examples, gradient=norm_of_all(gradients.values()),
                bad_gradients=not_finite(gradients)))
        statistics = [name for name in self._run.saved
                      if name not in mean and name not in (*LOSS_SCALE, tf.GraphKeys.GLOBAL_STEP)]
        with np.errstate(invalid='ignore', over='ignore'):
            changes = [Change(name, norm(taken.before[name]), norm(mean[name]) if name in mean else None,
                              norm(taken.after[name].astype(np.float64) - taken.before[name]))
                       for name in [*mean, *statistics]]
        scale = taken.before.get(LOSS_SCALE[0])
        return Step(taken.step, taken.losses, taken.figures, towers, norm_of_all(mean.values()), changes,
                    not_finite(taken.before), not_finite(taken.after), None if scale is None else float(scale))

    def gradients(self, taken: Taken, k: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns (the loss of tower k in a step, its gradient of each trained variable by its name)."""
        fetches = {name: self._inside.towers[k][name] for name in ('loss', 'gradients')}
        found = self._run.session.run(fetches, self._feed(taken, k, self.batch(taken, k)))
        return found['loss'], found['gradients']

    def batch(self, taken: Taken, k: int) -> Batch:
        """Returns the batch of tower k in a step."""
        step = taken.before[EXAMPLES_SEEN]
        first = step + k * self._run.plan.settings.towers.batch_size
        positions = dict(zip(self._inside.positions, (first, step)))
        return Batch(*self._run.session.run(list(self._inside.batch), positions))

    def origin(self, taken: Taken, k: int) -> Origin | None:
        """Returns the first operation in tower k whose result is not finite though its inputs are.

        Its result reaches the loss (or the gradients, if the loss is finite) through values that are not finite. An
        infinity that is clipped or masked does not count.

        Args:
          taken: a step.
          k: number of a tower whose loss or gradients are not finite.

        Returns:
          None if there is none, or if the operations cannot be looked at.
        """
        feed = self._feed(taken, k, self.batch(taken, k))
        with self._run.adding(), tf.device('/cpu:0'):
            results = self._results(k)
            finite = {tensor.name: _finite_rows(tensor) if rows else tf.reduce_all(tf.is_finite(tensor))
                      for tensor, rows in results}
        try:
            good = self._run.session.run(finite, feed)
        except tf.errors.OpError:  # a branch that is not taken has no results
            return None
        bad = {name for name, each in good.items() if not np.all(each)}
        loss, gradients = self._inside.towers[k]['loss'], self._inside.towers[k]['gradients'].values()
        pending = [loss] if loss.name in bad else [gradient for gradient in gradients if gradient.name in bad]
        reached = set()
        while pending:
            tensor = pending.pop()
            if tensor.name not in reached:
                reached.add(tensor.name)
                pending += [each for each in _inputs(tensor.op, good) if each.name in bad]
        for tensor, rows in results:
            inputs = _inputs(tensor.op, good)
            if tensor.name in reached and bad.isdisjoint(each.name for each in inputs):
                examples = np.flatnonzero(~good[tensor.name]).tolist() if rows and np.any(good[tensor.name]) else None
                ranges = [(float(each.min()), float(each.max())) for each in self._run.session.run(inputs, feed)
                          if each.size]
                return Origin(f'{tensor.op.name} ({tensor.op.type})', examples, ranges)
        return None

    def _feed(self, taken, k, batch):
        """Gives the variables the values that tower k read in a step; returns what its operations are fed."""
        values = taken.read_by(k)
        self._run.load({name: values[name] for name in self._run.saved})
        return dict(zip(self._inside.fed[k], batch))

    def _results(self, k):
        """Returns (tensor, whether it has a row for each example) of what the loss and gradients of tower k come from.

        They are in the order in which they were built, without those that cannot be fetched.
        """
        n = self._run.plan.settings.towers.batch_size
        gradients = [gradient.op for gradient in self._inside.towers[k]['gradients'].values()]
        needed, pending = set(), [self._inside.towers[k]['loss'].op, *gradients]
        while pending:
            operation = pending.pop()
            if operation not in needed:
                needed.add(operation)
                pending += [tensor.op for tensor in operation.inputs]
        from_images = {self._inside.fed[k][0].op}
        tensors = []
        for operation in tf.get_default_graph().get_operations():
            if not from_images.isdisjoint(tensor.op for tensor in operation.inputs):
                from_images.add(operation)
            for tensor in operation.outputs if operation in needed else []:
                if tensor.dtype.is_floating and tf.get_default_graph().is_fetchable(tensor):
                    is_batch = tensor.shape.rank and tensor.shape[0] == n
                    tensors.append((tensor, is_batch and operation in from_images and operation not in gradients))
        return tensors

    def close(self) -> None:
        """Closes the session."""
        self._open.close()


def _inputs(operation, fetchable):
    """Returns the inputs of an operation; in place of one that cannot be fetched, its operation's inputs."""
    inputs, hidden = [], set()
    pending = list(operation.inputs)
    while pending:
        tensor = pending.pop(0)
        if tensor.name in fetchable:
            inputs.append(tensor)
        elif tensor.op not in hidden and (
                tensor.dtype.is_floating or tensor.dtype.is_complex or tensor.dtype == tf.variant):
            hidden.add(tensor.op)
            pending += tensor.op.inputs
    return inputs


def _finite_rows(tensor):
    """Returns for each row of a tensor whether all its values are finite, bool [n]."""
    return tf.reduce_all(tf.reshape(tf.is_finite(tensor), [tf.shape(tensor)[0], -1]), 1)


def norm(values: np.ndarray | float | Sequence[float]) -> float:
    """Returns the Euclidean norm of values of any shape, computed in float64; not finite if a value is not."""
    flat = np.abs(values).astype(np.float64).ravel()
    return float(np.sqrt(flat @ flat))


def norm_of_all(arrays: Iterable[np.ndarray]) -> float:
    """Returns the Euclidean norm of all values of some arrays together."""
    return norm([norm(array) for array in arrays])


def not_finite(values: Mapping[str, np.ndarray]) -> dict[str, tuple[int, int]]:
    """Returns (how many values are not finite, of how many) of each array, by its name, where some are not."""
    return {name: (int(count), array.size) for name, array in values.items()
            if (count := np.size(array) - np.count_nonzero(np.isfinite(array)))}


def badness(number: float) -> tuple[int, float]:
    """Returns a sort key: NaN above infinity above all numbers."""
    return (2, 0.0) if math.isnan(number) else (1, 0.0) if math.isinf(number) else (0, float(number))
