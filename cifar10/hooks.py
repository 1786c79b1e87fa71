"""What happens between two steps: looking at the losses, reporting, saving, ending.

Every hook here is told the number of the step that has just ended, and fetches what it needs in the
step's own run. Knows a session and its fetches; nothing of networks, towers or inputs.
"""
import contextlib
import datetime
import math
import os
import threading
import time

import tensorflow.compat.v1 as tf
from tqdm import tqdm

from cifar10 import checkpoint, summaries
from cifar10.console import RunError

_TERMINAL_SECS = 10  # between two lines on a terminal, so that those at the start stay in sight


class SessionCreator(tf.train.SessionCreator):
    """Makes the session, and makes it anew when a device was lost; calls a function before that.

    Args:
      scaffold, target, config: as `tf.train.ChiefSessionCreator` takes them.
      before: function without arguments, or None.
    """

    def __init__(self, scaffold, target, config, before=None):
        self._creator = tf.train.ChiefSessionCreator(scaffold, target, config)
        self._before = before

    def create_session(self):
        if self._before:
            self._before()
        return self._creator.create_session()


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
        self._before, self._last = self._last, int(run_values.results['step'])
        self.after_step(run_context, **run_values.results)

    def after_step(self, context, step):
        """Acts on the step that has ended."""

    def due(self, every):
        """Returns whether a multiple of `every` was reached; other threads' steps may lie between two of ours."""
        return self._last // every > self._before // every


class Rate:
    """Wall-clock speed over the steps since it was last asked; the first step, a warm-up, is left out."""

    def __init__(self, examples_per_step):
        self._examples_per_step = examples_per_step
        self._mark = None

    @property
    def started(self):
        """Whether there is a window."""
        return self._mark is not None

    def start(self, step, at=None):
        """Begins a window after `step`, now or at a reading of `time.perf_counter`."""
        self._mark = step, time.perf_counter() if at is None else at

    def so_far(self, step):
        """Returns (examples a second, seconds a step) in the window, or None if it holds no step yet."""
        if self._mark is None or step == self._mark[0]:
            return None
        seconds = (time.perf_counter() - self._mark[1]) / (step - self._mark[0])
        return self._examples_per_step / seconds, seconds

    def measure(self, step):
        """Returns what `so_far` returns, and begins a new window."""
        speed = self.so_far(step)
        self.start(step)
        return speed


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
    """A line every `every` steps; on a terminal a progress bar, above which lines are at least 10 s apart."""

    def __init__(self, step, loss, examples_per_step, every, last_step, output):
        super().__init__(step, loss=loss)
        self._every, self._last_step, self._output = every, last_step, output
        self._examples_per_step = examples_per_step
        self._bar, self._next_line = None, 0.0

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self.close()  # of a session that was lost, as its rate is
        self._rate = Rate(self._examples_per_step)
        self._bar = tqdm(initial=self._last, total=self._last_step, unit='step', file=self._output,
                         disable=not self._output.isatty(), dynamic_ncols=True)
        self._begin = time.perf_counter()

    def after_step(self, context, step, loss):
        if not self._bar.disable:
            speed = self._rate.so_far(step)
            if speed:
                self._bar.set_postfix_str('loss %.2f, %.0f examples/s, %.3f s/batch' % (loss, *speed), refresh=False)
            self._bar.update(step - self._bar.n)
        if self._begin is not None:
            self._after_first_step(context, step, loss)
        elif self.due(self._every):
            self._print(context, step, loss, *self._rate.measure(step))

    def _after_first_step(self, context, step, loss):
        if self.due(self._every):  # its own duration, warm-up and all, is the only figure there is
            self._rate.start(self._before, self._begin)
            self._print(context, step, loss, *self._rate.measure(step))
        self._rate.start(step)
        self._begin = None

    def _print(self, context, step, loss, examples_per_sec, sec_per_batch):
        if not self._bar.disable:
            if time.perf_counter() < self._next_line:
                return
            self._next_line = time.perf_counter() + _TERMINAL_SECS
        line = '%s: step %d, loss = %.2f (%.1f examples/sec; %.3f sec/batch)' % (
            datetime.datetime.now(), step, loss, examples_per_sec, sec_per_batch)
        try:
            self._bar.write(line, file=self._output)
            self._output.flush()
        except BrokenPipeError:  # nobody reads any more (`| head`)
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._output.fileno())
            context.request_stop()

    def end(self, session):
        self.close()

    def close(self):
        """Leaves the terminal at the start of a line, after an error too."""
        if self._bar is not None:
            self._bar.close()


class SummaryHook(StepHook):
    """Fetches the summary in the run of every `every`-th step, and of the first step of all."""

    def __init__(self, step, summary, examples_per_step, every, events):
        super().__init__(step)
        self._summary, self._every, self._events = summary, every, events
        self._examples_per_step = examples_per_step
        self._shown = None

    def after_create_session(self, session, coord):
        reached = self._last
        super().after_create_session(session, coord)
        self._rate = Rate(self._examples_per_step)
        self._shown = self._last
        # Where a session was lost, the steps since its newest checkpoint are taken again.
        if reached is not None and self._last < reached:
            self._events.drop_after(self._last)

    def before_run(self, run_context):
        due = self._every and ((self._last + 1) // self._every > self._shown // self._every or self._last == 0)
        return tf.train.SessionRunArgs(dict(self._fetches, summary=self._summary) if due else self._fetches)

    def after_step(self, context, step, summary=None):
        if not self._rate.started:
            self._rate.start(step)
        if summary is not None:
            self._shown = step
            speed = self._rate.measure(step)
            # In the file at once, so that no curve ends before the checkpoint that a killed run goes on from.
            self._events.add(summary, step)
            if speed:
                self._events.add(summaries.scalars(examples_per_sec=speed[0]), step)


class CheckpointHook(StepHook):
    """Writes a checkpoint every `every` steps, after the last one, and at the end, unless the end is an error."""

    def __init__(self, step, checkpoints, every, last_step, drivers):
        super().__init__(step)
        self._checkpoints, self._every, self._last_step, self._drivers = checkpoints, every, last_step, drivers
        self._saved = None

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._saved = self._last

    def after_step(self, context, step):
        # The last one here too: at the end, a session no longer recovers from the loss of a device.
        if self.due(self._every) or step >= self._last_step:
            with self._drivers.paused():
                self._save(context.session)

    def _save(self, session):
        step = int(session.run(self._global_step))
        if step != self._saved:
            self._checkpoints.save(session, step)
            self._saved = step

    def end(self, session):
        self._save(session)


class DriverHook(tf.train.SessionRunHook):
    """Runs train operations over and over, each in a thread of its own, beside the loop that has the hooks.

    An error in a thread ends the loop with it. Goes before the hooks that save at the end.

    Args:
      train_ops: the operations; there may be none.
    """

    def __init__(self, train_ops):
        self._train_ops = train_ops
        self._threads, self._locks = [], []

    def after_create_session(self, session, coord):
        self._may_step, self._ended = threading.Event(), False
        self._may_step.set()
        self._locks = [threading.Lock() for _ in self._train_ops]
        self._threads = [threading.Thread(target=self._drive, args=(session, coord, *pair), daemon=True)
                         for pair in zip(self._train_ops, self._locks)]
        for thread in self._threads:
            coord.register_thread(thread)
            thread.start()

    def _drive(self, session, coord, train_op, lock):
        with coord.stop_on_exception(), contextlib.suppress(tf.errors.OutOfRangeError):  # the last batch was taken
            while not (self._ended or coord.should_stop()):
                self._may_step.wait()
                with lock:
                    session.run(train_op)

    @contextlib.contextmanager
    def paused(self):
        """Context in which no thread is within a step, so that what is saved belongs together."""
        if self._threads:
            self._may_step.clear()
        try:
            with contextlib.ExitStack() as held:
                for lock in self._locks:
                    held.enter_context(lock)
                yield
        finally:
            if self._threads:
                self._may_step.set()

    def join(self):
        """Waits until the threads have ended, each after the step that it is in."""
        self._ended = True
        for thread in self._threads:
            thread.join()

    def end(self, session):
        self.join()


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
