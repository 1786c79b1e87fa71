"""What happens between two steps: looking at the losses, reporting, saving, ending.

Every hook here is told the number of the step that has just ended, and fetches what it needs in the
step's own run. Knows a session and its fetches; nothing of networks, towers or inputs.
"""
import datetime
import math
import time

import tensorflow.compat.v1 as tf
from tqdm import tqdm

from cifar10 import checkpoint, summaries
from cifar10.console import RunError


class StepHook(tf.train.SessionRunHook):
    """Base: calls `after_step(context, step, **fetched)` after every run.

    Args:
      step: int64 tensor, global_step after the update.
      fetches: tensors to be fetched with it, by name.
    """

    def __init__(self, step, **fetches):
        self._fetches = dict(fetches, step=step)
        self._last = None  # the last step that has ended, restored ones included

    def begin(self):
        self._global_step = tf.train.get_global_step()

    def after_create_session(self, session, coord):
        self._last = int(session.run(self._global_step))

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        self._last = int(run_values.results['step'])
        self.after_step(run_context, **run_values.results)

    def after_step(self, context, step):
        """Acts on the step that has ended."""


class Rate:
    """Wall-clock speed over the steps since it was last asked; the first step, a warm-up, is left out."""

    def __init__(self, global_batch):
        self._global_batch = global_batch
        self._mark = None

    def start(self, step, at=None):
        """Begins a window after `step`, now or at a reading of `time.perf_counter`."""
        self._mark = step, time.perf_counter() if at is None else at

    def measure(self, step):
        """Returns (examples a second, seconds a step) since the last window's end, or None before the first."""
        mark, (now_step, now) = self._mark, (step, time.perf_counter())
        self._mark = now_step, now
        if mark is None or now_step == mark[0]:
            return None
        seconds = (now - mark[1]) / (now_step - mark[0])
        return self._global_batch / seconds, seconds


class DivergenceHook(StepHook):
    """Ends the run when any tower's loss is not finite; goes before the hooks that write."""

    def __init__(self, step, losses, train_dir):
        super().__init__(step, losses=losses)
        self._train_dir = train_dir

    def after_step(self, context, step, losses):
        for k, loss in enumerate(losses):
            if not math.isfinite(loss):
                raise RunError('step %d: the loss of tower %d is %s; %s'
                               % (step, k, loss, checkpoint.remainder(self._train_dir)))


class ProgressHook(StepHook):
    """A line every `every` steps; on a terminal a progress bar too."""

    def __init__(self, step, loss, global_batch, every, last_step, output):
        super().__init__(step, loss=loss)
        self._every, self._last_step, self._output = every, last_step, output
        self._rate, self._recent = Rate(global_batch), Rate(global_batch)
        self._bar = None

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._bar = tqdm(initial=self._last, total=self._last_step, unit='step', file=self._output,
                         disable=not self._output.isatty(), dynamic_ncols=True)
        self._begin = time.perf_counter()

    def after_step(self, context, step, loss):
        if not self._bar.disable:
            speed = self._recent.measure(step)
            if speed:
                self._bar.set_postfix_str('loss %.2f, %.0f examples/s' % (loss, speed[0]), refresh=False)
            self._bar.update(step - self._bar.n)
        if self._begin is not None:
            self._after_first_step(step, loss)
        elif step % self._every == 0:
            self._print(step, loss, *self._rate.measure(step))

    def _after_first_step(self, step, loss):
        if step % self._every == 0:  # its own duration, warm-up and all, is the only figure there is
            self._rate.start(step - 1, self._begin)
            self._print(step, loss, *self._rate.measure(step))
        self._rate.start(step)
        self._begin = None

    def _print(self, step, loss, examples_per_sec, sec_per_batch):
        self._bar.write('%s: step %d, loss = %.2f (%.1f examples/sec; %.3f sec/batch)' % (
            datetime.datetime.now(), step, loss, examples_per_sec, sec_per_batch), file=self._output)
        self._output.flush()

    def end(self, session):
        self.close()

    def close(self):
        """Leaves the terminal at the start of a line, after an error too."""
        if self._bar is not None:
            self._bar.close()


class SummaryHook(StepHook):
    """Fetches the summary in the run of every `every`-th step, and of the first step of all."""

    def __init__(self, step, summary, global_batch, every, writer):
        super().__init__(step)
        self._summary, self._every, self._writer = summary, every, writer
        self._rate = Rate(global_batch)

    def before_run(self, run_context):
        due = self._every and ((self._last + 1) % self._every == 0 or self._last == 0)
        return tf.train.SessionRunArgs(dict(self._fetches, summary=self._summary) if due else self._fetches)

    def after_step(self, context, step, summary=None):
        if summary is not None:
            speed = self._rate.measure(step)
            self._writer.add_summary(summary, step)
            if speed:
                self._writer.add_summary(summaries.scalars(examples_per_sec=speed[0]), step)
            # At once, so that no curve ends before the checkpoint that a killed run goes on from.
            self._writer.flush()


class CheckpointHook(StepHook):
    """Writes a checkpoint every `every` steps and at the end, unless the end is an error."""

    def __init__(self, step, checkpoints, every):
        super().__init__(step)
        self._checkpoints, self._every = checkpoints, every
        self._saved = None

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._saved = self._last

    def after_step(self, context, step):
        if step % self._every == 0:
            self._save(context.session)

    def _save(self, session):
        self._checkpoints.save(session, self._last)
        self._saved = self._last

    def end(self, session):
        if self._last != self._saved:
            self._save(session)


class StopHook(StepHook):
    """Ends the loop after the last step, or after the step in which a signal came."""

    def __init__(self, step, last_step, termination=None):
        super().__init__(step)
        self._last_step, self._termination = last_step, termination

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        if self._termination:
            self._termination.defer()

    def after_step(self, context, step):
        if step >= self._last_step or (self._termination and self._termination.requested):
            context.request_stop()
