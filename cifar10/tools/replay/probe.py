"""Probes: losses, gradients and operations inside a step, tower by tower.

The towers are built once more, in a graph of their own and all on one device, and compute from the variables that a
step began with and from its batches. Nothing is updated, so a look changes no variable.
"""
import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.names import EXAMPLES_SEEN, LOSS_SCALE
from cifar10.tools.replay.rerun import Taken
from cifar10.training import inside
from cifar10.training.inside import Batch
from cifar10.training.plan import Plan
from cifar10.training.run import Run


class TowerProbe(NamedTuple):
    """What happened in a tower.

    Attributes:
      loss: its total loss.
      cross_entropies: float32 [n], of each example.
      examples: int64 [n], the indices of the examples in the data set.
      labels, predictions: int [n], the classes that the examples have and that the network gives them.
      norms: name -> norm of the tower's gradient of each trained variable.
      counts, sizes: name -> how many values of that gradient are not finite, and how many it has.
    """
    loss: float
    cross_entropies: np.ndarray
    examples: np.ndarray
    labels: np.ndarray
    predictions: np.ndarray
    norms: dict[str, float]
    counts: dict[str, int]
    sizes: dict[str, int]

    @property
    def norm(self) -> float:
        """The norm of all its gradients together."""
        return norm(list(self.norms.values()))


class StepProbe(NamedTuple):
    """What happened in a step.

    Attributes:
      towers: a TowerProbe for each.
      gradients: name -> float64 array, the mean of the towers' gradients of each trained variable.
      statistics: the names of the network's other variables.
    """
    towers: list[TowerProbe]
    gradients: dict[str, np.ndarray]
    statistics: list[str]

    @property
    def norm(self) -> float:
        """The norm of all gradients together."""
        return norm([norm(gradient) for gradient in self.gradients.values()])


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

    def at(self, taken: Taken) -> StepProbe:
        """Returns what happened in a step."""
        towers = []
        total = {}
        for k, fetches in enumerate(self._inside.towers):  # one at a time: memory holds the activations of one
            batch = self.batch(taken, k)
            found = self._run.session.run(fetches, self._feed(taken, k, batch))
            gradients = found.pop('gradients')
            for name, gradient in gradients.items():
                total[name] = total.get(name, 0) + gradient.astype(np.float64)
            towers.append(TowerProbe(
                **found, labels=batch.labels, examples=batch.examples,
                norms={name: norm(gradient) for name, gradient in gradients.items()},
                counts={name: not_finite(gradient) for name, gradient in gradients.items()},
                sizes={name: gradient.size for name, gradient in gradients.items()}))
        statistics = [name for name in self._run.saved
                      if name not in total and name not in (*LOSS_SCALE, tf.GraphKeys.GLOBAL_STEP)]
        return StepProbe(towers, {name: gradient / len(towers) for name, gradient in total.items()}, statistics)

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


def not_finite(values: np.ndarray) -> int:
    """Returns how many values of an array are not finite."""
    return int(np.size(values) - np.count_nonzero(np.isfinite(values)))
