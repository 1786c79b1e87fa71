"""Checkpoints of a run: written, restored and rotated. `saved` finds and reads existing ones."""
import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.activity import doing
from cifar10.base.console import Output
from cifar10.base.errors import RunError, listed, reason
from cifar10.base.graphs import AVERAGE, LOSS_SCALE, LOST, OUTER_STATE
from cifar10.run import metrics, takeover
from cifar10.run.best import is_better
from cifar10.run.failures import describe_latest, diverged
from cifar10.run.folder import Folder, exists, glance, step_of
from cifar10.run.saved import Saved, digest, digest_of, incompatibility, newest
from cifar10.run.train_dir import TrainDir, remove


def misfit(shapes: Mapping[str, Sequence[int]], variables: Mapping[str, tf.Variable]) -> str | None:
    """Returns a phrase for the first variable that a run restores and a checkpoint does not have, or None.

    A checkpoint may lack the loss scale (of fp32) and the state of `local`. The arguments are as for
    `saved.incompatibility`.
    """
    required = {name: variable for name, variable in variables.items()
                if name not in LOSS_SCALE and name.rpartition('/')[2] not in OUTER_STATE}
    found = incompatibility(shapes, required)
    return f'{found}: it belongs to another network or optimizer' if found else None


def tidy(folder: Folder, step: int, max_to_keep: int, figure: str | None) -> None:
    """Cleans up the locked directory of a run that has ended at a step, in case it was killed at its end.

    It keeps as many checkpoints as `max_to_keep`, or as the run's own `max_to_keep` if that is more. Those of later
    steps, which cannot be read, do not count. `figure` is as for `find_best`.
    """
    remove(takeover.abandoned(folder))
    directory = TrainDir(folder.path)
    pinned = find_best(directory, folder.best, folder.evaluations, step, figure)
    before = folder.record.settings.reports.max_to_keep
    prefixes = [prefix for prefix in folder.checkpoints if step_of(prefix) <= step]
    rotate(directory, prefixes, folder.recorded, max(before, max_to_keep) if before and max_to_keep else 0, pinned)


def rotate(directory: TrainDir, prefixes: Sequence[str], recorded: Collection[int], max_to_keep: int,
           pinned: Mapping[str, Any] | None = None) -> None:
    """Lists the newest of some checkpoints and removes the others, but only those that the run has recorded.

    If all are kept, only the newest is listed, as by TensorFlow's Saver.

    Args:
      prefixes: oldest first; at least one.
      recorded: the steps of the run's own checkpoints.
      max_to_keep: how many to keep; 0: all.
      pinned: what best.json has; the checkpoint of its step stays.
    """
    directory.list_checkpoints(prefixes[-max_to_keep:] if max_to_keep else prefixes[-1:])
    for prefix in prefixes[:-max_to_keep] if max_to_keep else ():
        if step_of(prefix) in recorded and not (pinned and step_of(prefix) == pinned['step']):
            directory.remove_checkpoint(prefix)


def find_best(directory: TrainDir, noted: Mapping[str, Any] | None, evaluations: Sequence[Mapping[str, Any]], step: int,
              figure: str | None) -> Mapping[str, Any] | None:
    """Makes best.json name the best checkpoint up to a step; returns what it has then, or None without one.

    The records decide, because a kill may come between a better checkpoint and best.json. A checkpoint of a later step
    cannot be read, otherwise the run would go on from there; its steps are taken again.

    Args:
      noted: what best.json has.
      evaluations: the records of the run's evaluations, in the order of their steps.
      figure: the name of the figure that counts; None in a run that does not keep its best checkpoint.
    """
    def is_there(evaluation):
        return evaluation['step'] <= step and exists(f"{directory.checkpoint_prefix}-{evaluation['step']}")
    best = noted if noted and is_there(noted) else None
    for record in evaluations if figure else ():
        if (not best or record['step'] > best['step']) and is_better(record, best, figure) and is_there(record):
            best = record
    if best and best is not noted:
        directory.note_best(best)
    elif noted and not best:
        directory.forget_best()
    return best


class Checkpoints:
    """Writes all global variables of a graph, and finds what to restore; create it once they all exist.

    Args:
      start: the checkpoint to restore first, or None.
      folder: what is in the directory.
      max_to_keep: how many of the newest checkpoints are kept; 0: all.
      log: gets a record of each checkpoint with the digest of its variables.

    Attributes:
      last: the prefix that was saved or restored last, or None.
      best: what best.json has, the step of the checkpoint that rotation leaves and its figures; or None.
    """

    def __init__(self, directory: TrainDir, start: Saved | None, folder: Folder, max_to_keep: int,
                 log: metrics.Metrics):
        self.last = None
        self._saved_step = None  # the step that was saved or restored last
        self._passing = None  # the prefix that was saved last, if the next one replaces it
        self._directory = directory
        self._start = start
        self._recorded = set(folder.recorded)
        self.best = folder.best
        self._max_to_keep = max_to_keep
        self._log = log
        variables = tf.global_variables()
        with tf.device('/cpu:0'), tf.name_scope('checkpoint'):
            self._saver = tf.train.Saver(variables)
            self._step, = (v.read_value() for v in variables if v.op.name == tf.GraphKeys.GLOBAL_STEP)
            self._values = {v.op.name: v.read_value() for v in variables}
            self._finite = {name: tf.reduce_all(tf.is_finite(value)) for name, value in self._values.items()
                            if value.dtype.is_floating}

    def resume(self) -> dict[str, np.ndarray] | None:
        """Returns the variables that the run continues from, or None without a checkpoint.

        Raises:
          RunError: this process has saved or restored one, and none can be read any more.
        """
        self._directory.refuse_another_folder()
        # The first session gets the checkpoint that was chosen at the start. One that follows the loss of a device
        # gets the newest; otherwise the run would go back to where this process started.
        found, self._start = self._start or newest(lambda: glance(self._directory.path)), None
        if self.last and not found:
            raise RunError(f'the checkpoints in {self._directory.path} cannot be read any more (the newest was '
                           f'{self.last}); check the disk, then start again')
        self.last = found.prefix if found else self.last
        self._saved_step = found.step if found else None
        return found.values if found else None

    def save(self, session: tf.Session, passing: bool = False, best: Mapping[str, Any] | None = None) -> None:
        """Writes a checkpoint, unless this step was saved or restored last, and rotates the older ones.

        TensorFlow's Saver writes the files only. It would list and rotate checkpoints before anything is on the disk,
        so a power failure could destroy the new checkpoint and the older ones too.

        Args:
          passing: whether to remove this checkpoint once the next one is written.
          best: the record of the evaluation of this step, if it is the best one so far.

        Raises:
          RunError: a variable is not finite, or the checkpoint cannot be written.
        """
        step = int(session.run(self._step))
        if step == self._saved_step:
            return
        self.refuse_divergence(session, step)
        partial = self._directory.partial_prefix
        with self._writing(step):
            try:
                self._saver.save(session, partial, step, write_meta_graph=False, write_state=False)
                # The record is written first, so that it is on the disk with the checkpoint; without its checkpoint, a
                # resume drops it.
                record = self._log.write(metrics.CHECKPOINT, step, sha256=self._proved(session, f'{partial}-{step}'))
                self.last = self._directory.publish(step)
            except (tf.errors.OpError, OSError):
                self._directory.remove_partial(step)  # it may fill the disk
                raise
            self._saved_step = step
            self._recorded.add(step)
            if best:
                self._directory.note_best(best)
                self.best = best
            # A newer one is corrupt, or the run would have gone on from it.
            older = [prefix for prefix in glance(self._directory.path).checkpoints
                     if step_of(prefix) <= step and prefix != self._passing]
            rotate(self._directory, older, self._recorded, self._max_to_keep, self.best)
            if self._passing:
                self._directory.remove_checkpoint(self._passing)
            self._passing = self.last if passing else None
        Output.current.record(record)

    def _proved(self, session, prefix):
        """Returns the digest of a checkpoint, if its variables are those in memory; else raises an OSError."""
        found = digest(prefix)
        if found != digest_of(session.run(self._values)):
            raise OSError('what was read back differs from what is in memory')
        return found

    def refuse_divergence(self, session: tf.Session, step: int) -> None:
        """Raises a RunError if a variable is not finite in the step that the session is at."""
        wrong = [name for name, is_finite in session.run(self._finite).items() if not is_finite]
        if wrong:
            found, remedy = listed(wrong), 'try a lower learning rate'
            if all(name.endswith(AVERAGE) for name in wrong):
                found += ', although the averaged variables are finite: a device has computed wrongly'
                remedy = ''
            what = f'a variable is not finite, so no checkpoint is written ({found})'
            raise diverged(self._directory.path, step, what, remedy)

    @contextlib.contextmanager
    def _writing(self, step):
        """Context for errors in writing, which become RunErrors unless a device was lost."""
        try:
            with doing('save'):
                yield
        except LOST:
            raise  # from which training starts over
        except (tf.errors.OpError, OSError) as error:
            raise RunError(f'step {step}: the checkpoint cannot be written ({reason(error)}); correct that, and '
                           f'start again; {describe_latest(self._directory.path)}') from error
