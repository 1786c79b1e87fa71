"""Measures the steps of a training as it is, and steps that leave something out.

The kinds of steps take turns, so that a change of the machine's speed touches all of them.
"""
import contextlib
import functools
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError
from cifar10.data import pipeline
from cifar10.run import checkpoint, failures
from cifar10.run.saved import Saved
from cifar10.tools.explain.moments import Lap, Moments, mean_lap
from cifar10.training.plan import Plan
from cifar10.training.run import Run

# The kinds of steps. A group of devices, by its name, is one too: the gradients of its towers alone.
STEP = 'step'  # the loop's
SAME_BATCH = 'same batch'  # one batch again and again, so no input
NO_UPDATE = 'no update'  # up to the averaged gradients

_ENDLESS = 10 ** 8  # steps: no measurement is that long
_ROUNDS = 5  # repeats of each measurement
_FEWEST = 2  # steps in a repeat
# The share of all seconds for which steps of a kind are taken before any is measured. In its first steps TensorFlow
# learns which operations are too short to hand them to another thread; until then, steps of many of them take longer.
_WARM_UP = 1 / 40


def group_names(plan: Plan) -> list[str]:
    """Returns a name for each group of devices, such as '/gpu:0'."""
    return ['+'.join(group) for group in plan.devices.groups]


class Training:
    """A training whose steps are timed. Enter `opened` before anything is called.

    Args:
      plan: of the run.
      restored: the checkpoint that it starts from, or None.

    Attributes:
      plan: as given.
      moments: the marks in its graph.
      kinds: the kinds of steps that it takes.
    """

    def __init__(self, plan: Plan, restored: Saved | None):
        self.plan = plan
        self._restored = restored
        self._fixed = {}  # the values of one batch of each tower
        self._run = Run(plan._replace(last_step=plan.step + _ENDLESS))
        with self._run.adding():
            self.moments = Moments(self._run.graph, plan)
            # The towers' seconds wait for batches, also where they are fed.
            self._no_seconds = dict(seconds=tf.zeros(self._run.graph.tower_seconds.shape))
        groups = group_names(plan) if len(plan.devices.groups) > 1 else []
        self._incomplete = {NO_UPDATE: [self._run.graph.losses, self.moments.after_averaging],
                            **dict(zip(groups, self.moments.of_group))}
        self.kinds = [STEP, SAME_BATCH, *self._incomplete]

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Context with a session; raises a UsageError if the checkpoint is of another network."""
        start = self._restored
        if start and (found := checkpoint.misfit(start.shapes, self._run.saved)):
            raise UsageError(f'{start.prefix} {found}; use the checkpoint and the network of the same run')
        with self._run.opened(start.values if start else None):
            self.take(STEP)  # what does not fit into memory fails here
            batches = self._run.graph.batches
            fixed = self._run.session.run(batches)
            self._fixed = {tensor: value for pair in zip(batches, fixed) for tensor, value in zip(*pair)}
            yield

    def take(self, kind: str) -> float:
        """Takes a step of a kind; returns its seconds."""
        begin = time.perf_counter()
        if kind in self._incomplete:
            self._run.session.run(self._incomplete[kind])
        elif kind == SAME_BATCH:
            self._take(self._no_seconds, self._fixed)
        else:
            self._take()
        return time.perf_counter() - begin

    def settle(self, kind: str) -> None:
        """Brings steps of a kind to their steady rate, after others: nothing is in the caches, but batches wait.

        Where the input is slow, the first steps would find these batches, and be as short as if it were fast.
        """
        if kind != SAME_BATCH:
            for _ in range(pipeline.batches_ahead(self.plan.devices.on_gpus)):
                self._run.session.run([tensor.op for batch in self._run.graph.batches for tensor in batch])
        self.take(kind)

    def lap(self) -> Lap:
        """Takes a step with a trace; returns its parts."""
        # In a cluster, only a full trace has what the other tasks did.
        level = tf.RunOptions.FULL_TRACE if self.plan.devices.target else tf.RunOptions.SOFTWARE_TRACE
        metadata = tf.RunMetadata()
        begin = time.time()  # the clock of the trace
        self._take(dict(marks=self.moments.fetch), options=tf.RunOptions(trace_level=level), run_metadata=metadata)
        return self.moments.lap(metadata.step_stats, begin, time.time())

    def _take(self, *arguments, **traced):
        """Takes a step as the loop does, with the arguments of `Run.take`."""
        run = self._run
        losses = run.take(*arguments, **traced)['losses']
        failures.refuse_divergence(run.step, losses, self.plan.settings.run.train_dir, repeatable=False)
        if run.averages_after(run.step):
            run.average()


class Timing(NamedTuple):
    """Seconds of a step: the median of some repeats, with the lowest and the highest."""
    median: float
    low: float
    high: float


def timing_of(seconds: Sequence[float]) -> Timing:
    """Returns the Timing of repeats."""
    return Timing(float(np.median(seconds)), float(np.min(seconds)), float(np.max(seconds)))


class Measurement(NamedTuple):
    """What steps of a training take.

    Attributes:
      plan: of the training.
      megabytes: sent between devices in a step.
      timings: {kind of steps: their Timing}.
      laps: the mean Lap of the steps with a trace in each repeat. Tracing makes steps a little longer.
    """
    plan: Plan
    megabytes: float
    timings: dict[str, Timing]
    laps: list[Lap]

    @property
    def traced(self) -> Timing:
        """The Timing of the steps with a trace."""
        return timing_of([lap.seconds for lap in self.laps])

    @property
    def lap(self) -> Lap:
        """The Lap of the repeat of median length."""
        return sorted(self.laps, key=lambda lap: lap.seconds)[len(self.laps) // 2]


def expected_seconds(training: Training, seconds: float) -> float:
    """Returns how long `measure` takes, about: longer than it is asked to where steps are long."""
    training.settle(STEP)
    steps_of_a_kind = _FEWEST + _ROUNDS * (_FEWEST + 2)  # to settle takes about as long as two steps
    return max(seconds, (len(training.kinds) + 1) * steps_of_a_kind * training.take(STEP))


def measure(training: Training, seconds: float) -> Measurement:
    """Measures a training for some seconds, in turn each kind of its steps and steps with a trace."""
    takes = {kind: functools.partial(training.take, kind) for kind in training.kinds}
    for kind, take in takes.items():
        training.settle(kind)  # optimises the graph
        _repeated(take, _WARM_UP * seconds)
    training.lap()
    _repeated(training.lap, _WARM_UP * seconds)
    share = seconds / _ROUNDS / (len(takes) + 1)
    means: dict[str, list[float]] = {kind: [] for kind in takes}
    laps = []
    for _ in range(_ROUNDS):
        for kind, take in takes.items():
            training.settle(kind)
            means[kind].append(statistics.mean(_repeated(take, share)))
        training.settle(STEP)
        laps.append(mean_lap(_repeated(training.lap, share)))
    timings = {kind: timing_of(repeats) for kind, repeats in means.items()}
    return Measurement(training.plan, training.moments.megabytes, timings, laps)


def _repeated(take, seconds):
    """Returns the results of a function that is called for some seconds, and at least `_FEWEST` times."""
    results, end = [], time.perf_counter() + seconds
    while len(results) < _FEWEST or time.perf_counter() < end:
        results.append(take())
    return results
