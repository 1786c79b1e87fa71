"""Checkpoints of a run: written, restored and rotated. `saved` finds and reads existing ones."""
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import Output
from cifar10.base.errors import RunError, UsageError, reason
from cifar10.base.names import EXAMPLES_SEEN, LOSS_SCALE, OUTER_STATE
from cifar10.run import deletion, metrics
from cifar10.run.failures import describe_latest, diverged
from cifar10.run.names import step_of
from cifar10.run.rate import due
from cifar10.run.saved import digest, incompatibility, is_ours, newest, read
from cifar10.run.sessions import LOST
from cifar10.run.train_dir import TrainDir


def refuse_another_network(source: str, shapes: Mapping[str, Sequence[int]], variables: Mapping[str, tf.Variable],
                           remedy: str) -> None:
    """Raises a UsageError if a checkpoint does not have the variables that a run restores.

    Args:
      source: what the message calls the checkpoint.
      shapes: of its variables, by their names.
      variables: the variables that the run saves, by their names.
      remedy: the end of the message.
    """
    required = {name: variable for name, variable in variables.items() if not may_lack(name)}
    if found := incompatibility(shapes, required):
        raise UsageError(f'{source} {found}: it belongs to another network or optimizer; {remedy}')


def may_lack(name: str) -> bool:
    """Returns whether a checkpoint may lack a variable of the run that restores it.

    For example, the count of examples in a checkpoint of the tutorial, or the loss scale in one of fp32.
    """
    return name == EXAMPLES_SEEN or name in LOSS_SCALE or name.rpartition('/')[2] in OUTER_STATE


def tidy(directory: TrainDir, max_to_keep: int) -> None:
    """Cleans up the directory of a run that has ended, in case it was killed at its end.

    Args:
      directory: the run's directory.
      max_to_keep: how many checkpoints this start would keep; if the run's own settings keep more, they
        prevail.
    """
    stored = directory.stored()
    if stored is None:
        return
    deletion.tidy(directory)
    before = stored.settings.reports.max_to_keep
    keep = max(before, max_to_keep) if before and max_to_keep else 0  # 0: all
    rotate(directory, [prefix for prefix in directory.checkpoints() if is_ours(prefix)], keep,
           directory.kept_for_good())


def rotate(directory: TrainDir, prefixes: list[str], max_to_keep: int, for_good: Collection[int] = ()) -> list[str]:
    """Lists the newest checkpoints, removes the others, and returns the prefixes of the listed ones.

    Checkpoints that are kept for good are not listed. If all are kept, only the newest is, as by TensorFlow's Saver.
    So a save takes the same time with many checkpoints as with few.

    Args:
      directory: the checkpoints' directory.
      prefixes: the prefixes of this program's checkpoints, oldest first; others are neither listed nor
        removed.
      max_to_keep: how many to keep; 0: all.
      for_good: the steps of checkpoints that are kept too.
    """
    newest = prefixes[-max_to_keep:] if max_to_keep else prefixes[-1:]
    if newest:
        directory.list_checkpoints(newest)
    for prefix in prefixes[:-max_to_keep] if max_to_keep else ():
        if step_of(prefix) not in for_good:
            directory.remove_checkpoint(prefix)
    return newest


class Checkpoints:
    """Writes all global variables of a graph, and finds what to restore; create it once they all exist.

    Args:
      directory: the run's directory.
      start: prefix of the checkpoint to restore first, known to be readable; or None.
      max_to_keep: how many of the newest checkpoints are kept, besides those that are kept for good; 0: all.
      log: gets a record of each checkpoint with the digest of its variables.
      repeatable: whether the run's steps can be taken again, so that an error names the command that does it.
      keep_every: the first checkpoint at or past each multiple of so many steps is kept for good: no later start of the
        run removes it either; 0: none is.

    Attributes:
      last: the prefix that was saved or restored last, or None.

    Raises:
      UsageError: `start` is a checkpoint of another network or optimizer.
    """

    def __init__(self, directory: TrainDir, start: str | None, max_to_keep: int, log: metrics.Metrics,
                 repeatable: bool = True, keep_every: int = 0):
        self.last = None
        self._saved_step = None  # the step that was saved or restored last
        self._listed = []  # the checkpoints that are rotated, oldest first
        self._for_good = set()  # the steps of those that stay
        self._directory = directory
        self._start = start
        self._max_to_keep = max_to_keep
        self._keep_every = keep_every
        self._log = log
        self._repeatable = repeatable
        variables = tf.global_variables()
        with tf.device('/cpu:0'), tf.name_scope('checkpoint'):
            self._saver = tf.train.Saver(variables)
            self._step, = (v.read_value() for v in variables if v.op.name == tf.GraphKeys.GLOBAL_STEP)
            floats = [v.read_value() for v in variables if v.dtype.base_dtype.is_floating]
            self._finite = tf.reduce_all([tf.reduce_all(tf.is_finite(value)) for value in floats])
        if start:
            shapes = tf.train.load_checkpoint(start).get_variable_to_shape_map()
            refuse_another_network(
                start, shapes, {variable.op.name: variable for variable in variables}, 'use another --train_dir')

    def resume(self) -> dict[str, np.ndarray] | None:
        """Returns the variables that the run goes on from, or None without a checkpoint, and rotates the older ones."""
        self._directory.refuse_another_folder()
        # The first session gets the checkpoint that was chosen at the start. A session that follows the
        # loss of a device looks for the newest again; otherwise the run would go back to where this process
        # started.
        prefix = self._start or newest(self._directory)
        self._start = None
        self._saved_step = None
        if prefix is None:
            return None
        values = read(prefix)
        self.last = prefix
        self._saved_step = step_of(prefix)
        self._for_good = self._directory.kept_for_good()
        # Checkpoints of earlier processes are rotated too, but not those of other programs.
        ours = [older for older in self._directory.checkpoints()
                if step_of(older) <= step_of(prefix) and is_ours(older)]
        self._listed = rotate(self._directory, ours, self._max_to_keep, self._for_good)
        return values

    def save(self, session: tf.Session) -> None:
        """Writes a checkpoint named by its step, and removes the oldest once the new one is on the disk.

        Does nothing if this step was saved or restored last.

        TensorFlow's Saver writes the files only. It would list and rotate checkpoints before anything is on
        the disk, so a power failure could destroy the new checkpoint and the older ones too.

        Args:
          session: the session of the graph.

        Raises:
          RunError: a variable is not finite, or the checkpoint cannot be written.
        """
        step = int(session.run(self._step))
        if step == self._saved_step:
            return
        self.refuse_divergence(session, step)
        try:
            self._saver.save(session, self._directory.partial_prefix, step, write_meta_graph=False, write_state=False)
            # Read back from the files, so the record also proves that they can be read. It is written first, so that
            # it is on the disk with the checkpoint; without its checkpoint, a resume drops it.
            record = self._log.write(
                metrics.CHECKPOINT, step, sha256=digest(f'{self._directory.partial_prefix}-{step}'))
            is_kept = due(self._keep_every, self._saved_step or 0, step)
            self._for_good |= {step} if is_kept else set()
            self.last = prefix = self._directory.publish(step, is_kept)
            self._saved_step = step
        except LOST:
            raise  # from which training starts over
        except (tf.errors.OpError, OSError) as error:
            self._directory.remove_partial(step)  # it may fill the disk
            raise self._unwritten(step, error) from error
        try:
            others = [other for other in self._listed if other != prefix]
            self._listed = rotate(self._directory, [*others, prefix], self._max_to_keep, self._for_good)
        except OSError as error:
            raise self._unwritten(step, error) from error
        Output.current.record(record)

    def copy(self, session: tf.Session, folder: str) -> None:
        """Writes a checkpoint into another folder, which is neither recorded nor rotated nor yet on the disk.

        Raises:
          RunError: as `save`.
        """
        step = int(session.run(self._step))
        self.refuse_divergence(session, step)
        try:
            self._saver.save(session, TrainDir(folder).checkpoint_prefix, step, write_meta_graph=False,
                             write_state=False)
        except LOST:
            raise
        except (tf.errors.OpError, OSError) as error:
            raise self._unwritten(step, error) from error

    def refuse_divergence(self, session: tf.Session, step: int) -> None:
        """Raises a RunError if a variable is not finite in the step that the session is at."""
        if not session.run(self._finite):
            raise diverged(self._directory, step, 'a variable is not finite, so no checkpoint is written',
                           self._repeatable)

    def _unwritten(self, step, error):
        return RunError(f'step {step}: the checkpoint cannot be written ({reason(error)}); '
                        f'{describe_latest(self._directory)}')
