"""The hooks: what happens between two steps, in the order in which they act.

Every hook is given the number of the step that has just ended, and fetches what it needs in the step's own
run. Nothing here knows networks, towers or inputs.
"""
import contextlib
import datetime
import math
import time
from typing import Any, TextIO

import tensorflow.compat.v1 as tf
from tqdm import tqdm

from cifar10.console import discard, unread
from cifar10.errors import RunError
from cifar10.run import checkpoint, summaries
from cifar10.run.async_workers import AsyncWorkersHook
from cifar10.run.metrics import TRAIN, Metrics
from cifar10.run.train_dir import TrainDir
from cifar10.signals import Termination

_TERMINAL_SECS = 10  # between two lines on a terminal, so that those at the start stay in sight


class StepHook(tf.train.SessionRunHook):
    """Base: calls `after_step(context, step, **fetched)` after every run.

    Args:
      train_step: int64 tensor, global_step after the update; fetching it takes a step.
      fetches: tensors to be fetched with it, by name.
    """

    def __init__(self, train_step: tf.Tensor, **fetches: tf.Tensor):
        self._fetches = dict(fetches, step=train_step)
        self._last = None  # the last step that has ended, restored ones included

    def begin(self):
        self._global_step = tf.train.get_global_step()

    def after_create_session(self, session, coord):
        self._last = int(session.run(self._global_step))

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        self._before, self._last = self._last, int(run_values.results['step'])
        self.after_step(run_context, **run_values.results)

    def after_step(self, context, step):
        """Acts on the step that has ended."""

    def due(self, every: int) -> bool:
        """Returns whether a multiple of `every` was reached; other threads' steps may lie between two of ours."""
        return self._last // every > self._before // every


class DivergenceHook(StepHook):
    """Ends the run when any tower's loss is not finite; goes before the hooks that write."""

    def __init__(self, train_step: tf.Tensor, losses: tf.Tensor, directory: TrainDir):
        super().__init__(train_step, losses=losses)
        self._directory = directory

    def after_step(self, context, step, losses):
        for k, loss in enumerate(losses):
            if not math.isfinite(loss):
                raise RunError(f'step {step}: the loss of tower {k} is {loss}; '
                               f'{checkpoint.describe_latest(self._directory)}; try a lower --learning_rate')


class ProgressHook(StepHook):
    """A record and a line every `every` steps; on a terminal a progress bar, above which lines are at least 10 s apart.

    Args:
      train_step: int64 tensor, global_step after the update.
      figures: float32 scalars by their names, 'loss' among them, which records have; lines have a 'staleness' too.
      examples_per_step: of all towers.
      every, last_step: int.
      output: where the lines go.
      metrics: the file that the records go to.
      constants: what every record says.
    """

    def __init__(self, train_step: tf.Tensor, figures: dict[str, tf.Tensor], examples_per_step: int, every: int,
                 last_step: int, output: TextIO, metrics: Metrics, constants: dict[str, Any]):
        super().__init__(train_step, **figures)
        self._every, self._last_step, self._output = every, last_step, output
        self._examples_per_step, self._metrics, self._constants = examples_per_step, metrics, constants
        self._bar, self._next_line = None, 0.0
        self._unread = False  # whether nobody reads the output any more

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._metrics.drop_after(self._last)
        self.close()  # of a session that was lost, as its rate is
        self._rate = Rate(self._examples_per_step)
        self._bar = tqdm(initial=self._last, total=self._last_step, unit='step', file=self._output,
                         disable=not self._output.isatty(), dynamic_ncols=True)
        self._begin = time.perf_counter()

    def after_step(self, context, step, loss, **figures):
        if not self._bar.disable:
            speed = self._rate.so_far(step)
            if speed:
                examples_per_sec, sec_per_batch = speed
                self._bar.set_postfix_str(
                    f'loss {loss:.2f}, {examples_per_sec:.0f} examples/s, {sec_per_batch:.3f} s/batch', refresh=False)
            with self._reader_may_leave():
                self._bar.update(step - self._bar.n)
        due = self.due(self._every)
        if due and self._begin is not None:
            self._rate.start(self._before, self._begin)  # warm-up and all, it is the only figure there is
        if due:
            speed = self._rate.measure(step)
            self._metrics.add(TRAIN, step, loss=float(loss), **{name: float(figures[name]) for name in figures},
                              images_per_sec=speed[0], **self._constants)
            self._print(step, loss, *speed, **figures)
        if self._unread:
            context.request_stop()
        if self._begin is not None:
            self._rate.start(step)
            self._begin = None

    def _print(self, step, loss, examples_per_sec, sec_per_batch, staleness=None, **figures):
        if not self._bar.disable:
            if time.perf_counter() < self._next_line:
                return
            self._next_line = time.perf_counter() + _TERMINAL_SECS
        line = (f'{datetime.datetime.now()}: step {step}, loss = {loss:.2f} ({examples_per_sec:.1f} examples/sec; '
               f'{sec_per_batch:.3f} sec/batch)')
        if staleness is not None:
            line += f', staleness = {staleness:.1f}'
        self.say(line)

    def say(self, line: str) -> bool:
        """Prints a line above the bar; returns whether anybody reads it."""
        with self._reader_may_leave():
            self._bar.write(line, file=self._output)
            self._output.flush()
        return not self._unread

    @contextlib.contextmanager
    def _reader_may_leave(self):
        """Context for writing to a terminal or a pipe that may be closed, which ends the run in good order."""
        try:
            yield
        except OSError as error:
            if not unread(error):
                raise
            discard(self._output)
            self._unread = True

    def end(self, session):
        self.close()

    def close(self) -> None:
        """Leaves the terminal at the start of a line, after an error too."""
        if self._bar is not None:
            with self._reader_may_leave():
                self._bar.close()


class SummaryHook(StepHook):
    """Fetches the summary in the run of every `every`-th step, and of the first step of all."""

    def __init__(self, train_step: tf.Tensor, summary: tf.Tensor, examples_per_step: int, every: int,
                 events: summaries.Events):
        super().__init__(train_step)
        self._summary, self._every, self._events = summary, every, events
        self._examples_per_step = examples_per_step
        self._summarised = None

    def after_create_session(self, session, coord):
        reached = self._last
        super().after_create_session(session, coord)
        self._rate = Rate(self._examples_per_step)
        self._summarised = self._last
        # Where a session was lost, the steps since its newest checkpoint are taken again.
        if reached is not None and self._last < reached:
            self._events.drop_after(self._last)

    def before_run(self, run_context):
        due = self._every and ((self._last + 1) // self._every > self._summarised // self._every or self._last == 0)
        return tf.train.SessionRunArgs(dict(self._fetches, summary=self._summary) if due else self._fetches)

    def after_step(self, context, step, summary=None):
        if not self._rate.started:
            self._rate.start(step)
        if summary is not None:
            self._summarised = step
            speed = self._rate.measure(step)
            # In the file at once, so that no curve ends before the checkpoint that a killed run goes on from.
            self._events.add(summary, step)
            if speed:
                self._events.add(summaries.scalars({summaries.TRAIN + 'examples_per_sec': speed[0]}), step)


class CheckpointHook(StepHook):
    """Writes a checkpoint every `every` steps, after the last one, and at the end, unless the end is an error."""

    def __init__(self, train_step: tf.Tensor, checkpoints: checkpoint.Checkpoints, every: int, last_step: int,
                 workers: AsyncWorkersHook):
        super().__init__(train_step)
        self._checkpoints, self._every, self._last_step, self._workers = checkpoints, every, last_step, workers
        self._saved = None

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._saved = self._last

    def after_step(self, context, step):
        # The last one here too: at the end, a session no longer recovers from the loss of a device.
        if self.due(self._every) or step >= self._last_step:
            with self._workers.paused():
                self._save(context.session)

    def _save(self, session):
        step = int(session.run(self._global_step))
        if step != self._saved:
            self._checkpoints.save(session, step)
            self._saved = step

    def end(self, session):
        self._save(session)


class StopHook(StepHook):
    """Ends the loop after the last step, or after the step in which a signal came."""

    def __init__(self, train_step: tf.Tensor, last_step: int, termination: Termination | None = None):
        super().__init__(train_step)
        self._last_step, self._termination = last_step, termination

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        if self._termination:
            self._termination.defer()

    def after_step(self, context, step):
        if step >= self._last_step or (self._termination and self._termination.requested):
            context.request_stop()


class Rate:
    """Wall-clock speed over the steps since it was last asked; the first step, a warm-up, is left out."""

    def __init__(self, examples_per_step: int):
        self._examples_per_step = examples_per_step
        self._mark = None

    @property
    def started(self) -> bool:
        """Whether there is a window."""
        return self._mark is not None

    def start(self, step: int, at: float | None = None) -> None:
        """Begins a window after `step`, now or at a reading of `time.perf_counter`."""
        self._mark = step, time.perf_counter() if at is None else at

    def so_far(self, step: int) -> tuple[float, float] | None:
        """Returns (examples a second, seconds a step) in the window, or None if it holds no step yet."""
        if self._mark is None or step == self._mark[0]:
            return None
        seconds = (time.perf_counter() - self._mark[1]) / (step - self._mark[0])
        return self._examples_per_step / seconds, seconds

    def measure(self, step: int) -> tuple[float, float] | None:
        """Returns what `so_far` returns, and begins a new window."""
        speed = self.so_far(step)
        self.start(step)
        return speed
