"""A training that is set up to be measured: its graph, its session, and the kinds of steps that it can take.

It writes into a folder of its own.
"""
import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.run import checkpoint, summaries
from cifar10.run.async_workers import AsyncWorkers
from cifar10.run.metrics import Metrics
from cifar10.run.progress import Progress
from cifar10.run.stragglers import Stragglers
from cifar10.run.train_dir import TrainDir
from cifar10.tools.explain.moments import Lap, Moments
from cifar10.training import graph, loop, trainer
from cifar10.training.plan import Plan
from cifar10.training.run import Run

# The kinds of steps. STEP is the loop's; each of the others leaves something out or adds something.
STEP = 'step'
SAME_BATCH = 'same batch'  # one batch again and again, so no input
NO_UPDATE = 'no update'  # up to the averaged gradients
TOWERS_ALONE = 'towers alone'  # neither averaging nor update
ONE_DEVICE = 'one device'  # the towers of one device alone
SUMMARY = 'summary'  # with the summary for TensorBoard, which is written

_OF_A_STEP = STEP, SAME_BATCH, SUMMARY  # the kinds that are whole steps
_ENDLESS = 10 ** 8  # steps: no measurement is that long


class Variant:
    """A training in a session that is open until `close`. It starts from the checkpoint of its plan, if there is one.

    Args:
      plan: of the run.
      folder: an empty folder, for what a run would write into its train_dir.
      before_session: function that is called before the session is made, or None.
      position: of the first example to train on; None: where the checkpoint ends.
      cause: the `causes.Cause` that it is without, if any.

    Attributes:
      plan, cause: as given.
      position: of the first example that it trained on.
      megabytes: the size of what the towers exchange: gradients, or in `local` copies with their slots; float32.
      moments: the marks in its graph.
    """

    def __init__(self, plan: Plan, folder: str, before_session: Callable[[], None] | None = None,
                 position: int | None = None, cause: Any = None):
        self.plan = plan
        self.cause = cause
        self._directory = TrainDir(folder)
        self._open = contextlib.ExitStack()
        with contextlib.ExitStack() as failed:
            failed.callback(self.close)
            self._run = Run(plan._replace(last_step=plan.step + _ENDLESS))
            with self._run.adding():
                self._prepare(folder)
            if before_session:
                before_session()
            self._open.enter_context(self._run.opened(self._checkpoints.resume(), position))
            self.position = self._run.position
            self._reporters(folder)
            self.take(1)  # what does not fit into memory fails here
            failed.pop_all()

    def _prepare(self, folder):
        """Adds to the graph what is measured, and makes what the steps are evaluated and saved with."""
        plan, graph = self.plan, self._run.graph
        exchanged = {v.op.name: v for v in tf.trainable_variables() if v in tf.global_variables()}
        if plan.mode.drifts:
            exchanged.update((v.op.name, v) for v in graph.step.average.copies[0])
        self.megabytes = sum(v.shape.num_elements() for v in exchanged.values()) * 4 / 1e6
        self.moments = Moments(graph, plan)
        self._no_seconds = tf.zeros(graph.tower_seconds.shape)
        self._log = Metrics(folder)
        self._checkpoints = checkpoint.Checkpoints(self._directory, plan.checkpoint, 1, self._log, repeatable=False)
        self._validation = trainer.validation_of(plan)
        if self._validation:
            self._open.callback(self._validation.close)

    def _reporters(self, folder):
        """Makes what the loop notes and prints steps with."""
        plan = self._run.plan
        self._events = summaries.Events(folder)
        self._open.callback(self._events.close)
        nowhere = self._open.enter_context(open(os.devnull, 'w'))
        self._progress = self._open.enter_context(Progress(
            self._run.step, plan.last_step, plan.settings.reports.log_frequency, plan.examples_per_step, self._log, {},
            lambda line: nowhere.write(line + '\n')))
        places = [plan.devices.place(k) for k in range(plan.devices.num_towers)]
        self._stragglers = Stragglers(places, self._progress.say)
        self._batches = None  # values of the tensors of `graph.batches`

    def close(self) -> None:
        """Closes the session, which frees its memory."""
        self._open.close()

    def take(self, count: int, kind: str = STEP, group: int = 0) -> list[float]:
        """Takes steps of a kind; returns the seconds of each.

        These include what the loop does after a step: it notes figures and prints.

        Args:
          count: how many steps.
          kind: STEP, or another of the kinds above.
          group: of ONE_DEVICE, the number of the device's group.
        """
        feed = self._feed() if kind == SAME_BATCH else None
        seconds = []
        for _ in range(count):
            begin = time.perf_counter()
            if kind in _OF_A_STEP:
                self._report(self._run.take(self._also(kind), feed))
            else:
                self._run.session.run(self._fetches(kind, group))
            seconds.append(time.perf_counter() - begin)
        return seconds

    def settle(self, kind: str = STEP, group: int = 0) -> None:
        """Brings steps of a kind to their steady rate, after others: nothing is in the caches, but batches wait.

        Where the input is slow, the first steps would find these batches, and be as short as if it were fast.
        """
        if kind != SAME_BATCH:
            for _ in range(graph.batches_ahead(self.plan)):
                self._run.session.run([tensor.op for batch in self._run.graph.batches for tensor in batch])
        self.take(1, kind, group)

    def laps(self, count: int) -> list[Lap]:
        """Takes `count` steps with a trace; returns their parts."""
        laps = []
        # In a cluster, only a full trace has what the other tasks did.
        level = tf.RunOptions.FULL_TRACE if self.plan.devices.target else tf.RunOptions.SOFTWARE_TRACE
        for _ in range(count):
            metadata = tf.RunMetadata()
            begin = time.time()  # the clock of the trace
            self._report(self._run.take(dict(marks=self.moments.fetch), options=tf.RunOptions(trace_level=level),
                                        run_metadata=metadata))
            laps.append(self.moments.lap(metadata.step_stats, begin, time.time()))
        return laps

    def _also(self, kind):
        """Returns what a step of a kind fetches besides, or otherwise than, a step of the loop."""
        if kind == SAME_BATCH:  # the towers' seconds wait for batches, also where they are fed
            return dict(seconds=self._no_seconds)
        return dict(summary=self._run.graph.summary) if kind == SUMMARY else None

    def _fetches(self, kind, group):
        """Returns the tensors and operations that are the part of a step that a kind consists of."""
        if kind == ONE_DEVICE:
            return self.moments.of_group[group]
        if kind == NO_UPDATE:
            return self._run.graph.losses, self.moments.after_averaging
        return self.moments.after_towers

    def _feed(self):
        batches = self._run.graph.batches
        if self._batches is None:
            self._batches = self._run.session.run(batches)
        return {tensor: value for pair in zip(batches, self._batches) for tensor, value in zip(*pair)}

    def _report(self, results):
        step = self._run.step
        if self.cause is None:
            loop.refuse_divergence(step, results['losses'], self._directory, repeatable=False)
        for reporter in (self._progress, self._stragglers):
            reporter.after_step(step, results)
        if 'summary' in results:
            self._events.add(results['summary'], step)

    def save(self) -> None:
        """Saves a checkpoint."""
        self._checkpoints.save(self._run.session)

    def average(self) -> None:
        """Averages the towers' copies of the variables, if there are copies."""
        self._run.average()

    def evaluate(self) -> None:
        """Evaluates as the run does between two steps."""
        self._validation.evaluate(self._run.variables(self._validation.names))

    def rates(self, seconds: float) -> tuple[list[float], float, float]:
        """Lets asynchronous towers update on their own for some seconds.

        Returns:
          (each tower's updates a second, all updates a second, the mean staleness).
        """
        graph, session = self._run.graph, self._run.session
        counters = graph.step.turns.counters
        staleness = []
        with AsyncWorkers(graph.async_train_ops).stepping(session):
            self.take(3)
            before, first, begin = *session.run([counters, graph.global_step]), time.time()
            while time.time() < begin + seconds:
                staleness.append(float(session.run([graph.train_step, graph.figures['staleness']])[1]))
            after, last, end = *session.run([counters, graph.global_step]), time.time()
        elapsed = end - begin
        towers = [(now - then) / 2 / elapsed for now, then in zip(after, before)]  # a turn counts as two
        return towers, float(last - first) / elapsed, float(np.mean(staleness))
