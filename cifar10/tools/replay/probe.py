"""Probes: losses, gradients and operations inside a step, tower by tower.

The towers are built once more, in a graph of their own and all on one device, and compute from the variables that a
step began with and from its batches. Nothing is updated, so a look changes no variable.
"""
import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.graphs import EXAMPLES_SEEN, LOSS_SCALE, with_inputs
from cifar10.tools import towers
from cifar10.tools.replay.rerun import Taken
from cifar10.training.plan import Plan
from cifar10.training.run import Run


class Origin(NamedTuple):
    """An operation whose result is not finite although its inputs are.

    Attributes:
      operation: its name and type.
      places: in the batch, of the examples concerned; None if all are.
      ranges: the smallest and the largest value of each input.
    """
    operation: str
    places: list[int] | None
    ranges: list[tuple[float, float]]


class Look(NamedTuple):
    """A look into a replayed step.

    Attributes:
      step: its number.
      losses: float32 [towers].
      figures: of its record in metrics.jsonl.
      towers: for each a dict: 'loss'; 'losses', float32 [n], 'examples', int64 [n], 'labels' and
        'predictions', int [n], of the examples in its batch; and 'gradient', the norm of all its gradients together.
      gradient: the norm of the mean gradient of all variables.
      norms: {variable of the network: (its value before the step, its mean gradient, its change)}, as norms. A moving
        statistic has no gradient: None.
      bad_gradients: {tower: {variable: (how many values of its gradient are not finite, of how many)}}, where some are.
      bad_before: the same of the variables before the step.
      bad_made: the same of those after it, where more are not finite than before. (Some are so by design.)
      loss_scale: by which the loss was multiplied, or None.
      origin: of the first tower with a loss or gradient that is not finite; None if there is none.
    """
    step: int
    losses: np.ndarray
    figures: dict[str, float]
    towers: list[dict[str, Any]]
    gradient: float
    norms: dict[str, tuple[float, float | None, float]]
    bad_gradients: dict[int, dict[str, tuple[int, int]]]
    bad_before: dict[str, tuple[int, int]]
    bad_made: dict[str, tuple[int, int]]
    loss_scale: float | None
    origin: Origin | None = None

    @property
    def bad_losses(self) -> list[int]:
        """The towers whose loss is not finite."""
        return [k for k, loss in enumerate(self.losses) if not math.isfinite(loss)]

    @property
    def bad_tower(self) -> int | None:
        """The first tower whose loss is not finite, or else whose gradients are not; None if there is none."""
        return next(iter([*self.bad_losses, *self.bad_gradients]), None)

    @property
    def is_finite(self) -> bool:
        """Whether all losses and gradients are finite, and the step made no variable not finite."""
        return self.bad_tower is None and not self.bad_made

    @property
    def was_skipped(self) -> bool:
        """Whether the step left the variables as they were because gradients overflowed, as they may in fp16."""
        return self.loss_scale is not None and bool(self.bad_gradients) and not (self.bad_losses or self.bad_made)


class Probe:
    """A graph of all towers, for steps of one plan, in a session that is open until `close`.

    Args:
      plan: of the steps.
    """

    def __init__(self, plan: Plan):
        self._run = Run(towers.on_one_device(plan), is_new=False, build=towers.build)
        self._towers = self._run.graph
        self._open = contextlib.ExitStack()
        self._open.enter_context(self._run.opened(is_final=False))  # `_origin` adds to the graph

    def look(self, taken: Taken) -> Look:
        """Looks into a step, which was taken with its variables."""
        found, mean, bad_gradients = [], {}, {}
        for k, fetches in enumerate(self._towers.fetches):  # one at a time: memory holds the activations of one
            batch = self.batch(taken, k)
            tower = self._run.session.run(fetches, self._feed(taken, k, batch))
            gradients = tower.pop('gradients')
            found.append(dict(tower, labels=batch.labels, examples=batch.examples,
                              gradient=norm_of_all(gradients.values())))
            if bad := not_finite(gradients):
                bad_gradients[k] = bad
            for name, gradient in gradients.items():
                mean[name] = mean.get(name, 0) + gradient.astype(np.float64) / len(self._towers.fetches)
        bad_before = not_finite(taken.before)
        bad_made = {name: (count, size) for name, (count, size) in not_finite(taken.after).items()
                    if count > bad_before.get(name, (0, size))[0]}
        scale = taken.before.get(LOSS_SCALE[0])
        look = Look(taken.step, taken.losses, taken.figures, found, norm_of_all(mean.values()),
                    self._norms(taken, mean), bad_gradients, bad_before, bad_made,
                    None if scale is None else float(scale))
        return look if look.bad_tower is None else look._replace(origin=self._origin(taken, look.bad_tower))

    def _norms(self, taken, mean):
        """Returns `Look.norms` of a step with some mean gradients."""
        statistics = [name for name in self._run.saved
                      if name not in mean and name not in (*LOSS_SCALE, tf.GraphKeys.GLOBAL_STEP)]
        with np.errstate(invalid='ignore', over='ignore'):
            return {name: (norm(taken.before[name]), norm(mean[name]) if name in mean else None,
                           norm(taken.after[name].astype(np.float64) - taken.before[name]))
                    for name in [*mean, *statistics]}

    def batch(self, taken: Taken, k: int) -> towers.Batch:
        """Returns the batch of tower k in a step."""
        step = taken.before[EXAMPLES_SEEN]
        first = step + k * self._run.plan.settings.towers.batch_size
        positions = dict(zip(self._towers.positions, (first, step)))
        return towers.Batch(*self._run.session.run(list(self._towers.batch), positions))

    def _feed(self, taken, k, batch):
        """Gives the variables the values that tower k read in a step; returns what its operations are fed."""
        values = taken.read_by(k)
        self._run.load({name: values[name] for name in self._run.saved})
        return dict(zip(self._towers.fed[k], batch))

    def _origin(self, taken, k):
        """Returns the Origin of tower k, whose loss or gradients are not finite.

        From the loss, or else from a gradient, it follows values that are not finite to where they come from. So an
        infinity that is clipped or masked does not count.
        """
        fetches = self._towers.fetches[k]
        targets = [fetches['loss'], *fetches['gradients'].values()]
        feed = self._feed(taken, k, self.batch(taken, k))
        with self._run.adding(), tf.device('/cpu:0'):
            is_fetchable = tf.get_default_graph().is_fetchable
            finite = {tensor.name: tf.reduce_all(tf.is_finite(tensor))
                      for operation in with_inputs(target.op for target in targets) for tensor in operation.outputs
                      if tensor.dtype.is_floating and is_fetchable(tensor)}
        try:
            found = self._run.session.run(finite, feed)
        except tf.errors.OpError:  # a branch that is not taken has no results
            return None
        bad = [target for target in targets if not found[target.name]]
        if not bad:
            return None
        while bad:
            tensor, inputs = bad[0], [each for each in bad[0].op.inputs if each.name in found]
            bad = [each for each in inputs if not found[each.name]]
        value, inputs = self._run.session.run([tensor, inputs], feed)
        return Origin(f'{tensor.op.name} ({tensor.op.type})', self._examples(k, tensor, value),
                      [(float(each.min()), float(each.max())) for each in inputs if each.size])

    def _examples(self, k, tensor, value):
        """Returns for which examples of tower k a value is not finite, if it has a row for each; None if for all."""
        images, fetches = self._towers.fed[k][0], self._towers.fetches[k]
        if tensor.name in (gradient.name for gradient in fetches['gradients'].values()):
            return None
        if not value.ndim or len(value) != images.shape[0] or images.op not in with_inputs([tensor.op]):
            return None
        bad = ~np.isfinite(value).reshape(len(value), -1).all(1)
        return None if bad.all() else np.flatnonzero(bad).tolist()

    def close(self) -> None:
        """Closes the session."""
        self._open.close()


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
