"""A training that is set up to be measured: its graph, its session, and the kinds of steps that it can take.

It writes into a folder of its own.
"""
import contextlib
import time
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from cifar10.run import checkpoint, failures, saved
from cifar10.run.metrics import Metrics
from cifar10.run.tensorboard import Events
from cifar10.run.train_dir import TrainDir
from cifar10.tools.explain.moments import Lap, Moments
from cifar10.training import graph, trainer
from cifar10.training.plan import Plan
from cifar10.training.run import Run

# The kinds of steps. STEP is the loop's; each of the others leaves something out or adds something.
STEP = 'step'
SAME_BATCH = 'same batch'  # one batch again and again, so no input
NO_UPDATE = 'no update'  # up to the averaged gradients
TOWERS_ALONE = 'towers alone'  # neither averaging nor update
ONE_DEVICE = 'one device'  # the towers of one device alone
SUMMARY = 'summary'  # with the summary for TensorBoard, which is written
_ENDLESS = 10 ** 8  # steps: no measurement is that long


class Variant:
    """A training in a session that is open until `close`. It starts from the checkpoint of its plan, if there is one.

    Args:
      plan: of the run.
      folder: an empty folder, for what a run would write into its train_dir.
      before_session: function that is called before the session is made, or None.
      may_diverge: whether losses need not be finite.

    Attributes:
      plan: as given.
      moments: the marks in its graph.
    """

    def __init__(self, plan: Plan, folder: str, before_session: Callable[[], None] | None = None,
                 may_diverge: bool = False):
        self.plan = plan
        self._may_diverge = may_diverge
        self._directory = TrainDir(folder)
        self._batches = None  # values of the tensors of `graph.batches`
        with contextlib.ExitStack() as stack:
            self._run = Run(plan._replace(last_step=plan.step + _ENDLESS))
            with self._run.adding():
                self.moments = Moments(self._run.graph, plan)
                self._no_seconds = tf.zeros(self._run.graph.tower_seconds.shape)
                restored = saved.read(plan.checkpoint) if plan.checkpoint else None
                self._checkpoints = checkpoint.Checkpoints(
                    self._directory, restored, 1, Metrics(folder), repeatable=False)
                self._validation = trainer.validation_of(plan)
                if self._validation:
                    stack.callback(self._validation.close)
            self._events = Events(folder)
            stack.callback(self._events.close)
            if before_session:
                before_session()
            stack.enter_context(self._run.opened(self._checkpoints.resume()))
            self.take(1)  # what does not fit into memory fails here
            self._open = stack.pop_all()

    def close(self) -> None:
        """Closes the session, which frees its memory."""
        self._open.close()

    def take(self, count: int, kind: str = STEP, group: int = 0) -> list[float]:
        """Takes steps of a kind; returns the seconds of each.

        Args:
          count: how many steps.
          kind: STEP, or another of the kinds above.
          group: of ONE_DEVICE, the number of the device's group.
        """
        moments, run = self.moments, self._run
        parts = {ONE_DEVICE: moments.of_group[group], NO_UPDATE: [run.graph.losses, moments.after_averaging],
                 TOWERS_ALONE: moments.after_towers}
        # The towers' seconds wait for batches, also where they are fed.
        also = {SAME_BATCH: dict(seconds=self._no_seconds), SUMMARY: dict(summary=run.graph.summary)}.get(kind)
        feed = self._feed() if kind == SAME_BATCH else None
        seconds = []
        for _ in range(count):
            begin = time.perf_counter()
            if kind in parts:
                run.session.run(parts[kind])
            else:
                self._report(run.take(also, feed))
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

    def _feed(self):
        batches = self._run.graph.batches
        if self._batches is None:
            self._batches = self._run.session.run(batches)
        return {tensor: value for pair in zip(batches, self._batches) for tensor, value in zip(*pair)}

    def _report(self, results):
        """Does with the results of a step what the loop does: its losses must be finite, a summary is written."""
        if not self._may_diverge:
            failures.refuse_divergence(self._run.step, results['losses'], self._directory.path, repeatable=False)
        if 'summary' in results:
            self._events.add(results['summary'], self._run.step)

    def save(self) -> None:
        """Saves a checkpoint."""
        self._checkpoints.save(self._run.session)

    def average(self) -> None:
        """Averages the towers' copies of the variables, if there are copies."""
        self._run.average()

    def evaluate(self) -> None:
        """Evaluates as the run does between two steps."""
        self._validation.evaluate(self._run.variables(self._validation.names))
