"""Checkpoints: writing whole ones, finding the newest that can be read, and restoring it.

A checkpoint of the classic tutorial fits too: it has the same variable names, a global_step in float32, and
no count of examples.
"""
import contextlib
import time
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.errors import RunError, UsageError, reason
from cifar10.optim.precision import LOSS_SCALE
from cifar10.run.sessions import LOST
from cifar10.run.train_dir import SETTINGS, TrainDir, step_of

EXAMPLES_SEEN = 'examples_seen'  # the name of the variable that counts examples
DIVISION = ('num_towers', 'batch_size')  # the names of those that keep how a step is divided
_CLASSIC_BATCH = 128  # of the tutorial: a step of its checkpoints stands for so many examples
_RETRY_SECS = 0.5

# Corrupt checkpoints that this process has reported. Of the process, because a watching evaluator looks again and
# again, from several places, and is to report each once.
_reported = set()


def newest(directory: TrainDir) -> str | None:
    """Returns the prefix of the newest checkpoint whose every byte can be read, or None.

    A corrupt one (a full disk, a broken copy) is reported in a line, once. One that is removed while it is
    being read, because a newer one took its place, is not corrupt.
    """
    corrupt = set()
    while True:
        prefix = next((each for each in reversed(directory.checkpoints()) if each not in corrupt), None)
        why = prefix and corruption(prefix)
        if why:
            time.sleep(_RETRY_SECS)  # the trainer removes a checkpoint file by file
            if prefix not in directory.checkpoints():
                continue
            why = corruption(prefix)
        if not why:
            return prefix
        corrupt.add(prefix)
        if prefix not in _reported:
            _reported.add(prefix)
            print(f'warning: {prefix} cannot be read ({why}); looking for the one before it')


def newest_of_run(directory: TrainDir) -> str | None:
    """Returns what `newest` does, for a run that is to be resumed.

    Raises:
      UsageError: there are checkpoints, but none can be read, or it is unclear whose they are.
    """
    if directory.stored() is None and not directory.lost_settings:
        for prefix in directory.checkpoints():
            why = _unreadable(prefix)
            if why:
                raise UsageError(f'{prefix} cannot be read, and there is no {SETTINGS} beside it; use another '
                                 '--train_dir')
    prefix = newest(directory)
    if prefix is None and directory.checkpoints():
        raise UsageError(f'no checkpoint in --train_dir={directory.path} can be read; use another --train_dir, or '
                         '--restart to delete that run')
    return prefix


def corruption(prefix: str) -> str | None:
    """Returns why a checkpoint cannot be read, in a line, or None if it can."""
    try:
        reader = tf.train.load_checkpoint(prefix)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)  # checks lengths and checksums
    except Exception as error:  # of any type: the reader translates some of its errors and not others
        return reason(error)
    return None


def _unreadable(prefix):
    try:
        tf.train.load_checkpoint(prefix)
    except Exception as error:  # of any type, as above
        return reason(error)
    return None


def is_ours(prefix: str) -> bool:
    """Returns whether this program wrote a checkpoint; the classic scripts count no examples."""
    try:
        return tf.train.load_checkpoint(prefix).has_tensor(EXAMPLES_SEEN)
    except Exception:
        return True  # corrupted since it was written: a run does not begin beside one that cannot be read


def saved_step(prefix: str) -> int:
    """Returns the global_step in a checkpoint; the tutorial's is a float32."""
    return int(tf.train.load_checkpoint(prefix).get_tensor('global_step'))


def saved_progress(prefix: str) -> tuple[int, int]:
    """Returns (the global_step in a checkpoint, the examples that were seen until then)."""
    reader, step = tf.train.load_checkpoint(prefix), saved_step(prefix)
    return step, int(reader.get_tensor(EXAMPLES_SEEN) if reader.has_tensor(EXAMPLES_SEEN) else step * _CLASSIC_BATCH)


def describe_latest(directory: TrainDir) -> str:
    """Returns a phrase that says which checkpoint a user can continue from."""
    prefix = newest(directory)
    return f'the newest checkpoint is {prefix}' if prefix else 'there is no checkpoint yet'


@contextlib.contextmanager
def named_in_errors(directory: TrainDir) -> Iterator[None]:
    """Context that turns an error of TensorFlow into a RunError that names the newest checkpoint."""
    try:
        yield
    except tf.errors.OpError as error:
        raise RunError(f'{reason(error)}; {describe_latest(directory)}') from error


def incompatibility(prefix: str, variables: Mapping[str, tf.Variable]) -> str | None:
    """Returns what in a checkpoint does not fit, as a phrase, or None if all does.

    A restore into resource variables does not look at shapes, and what follows is undefined.

    Args:
      prefix: of the checkpoint.
      variables: name in the checkpoint -> variable.
    """
    saved = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    for name, variable in sorted(variables.items()):
        if name not in saved:
            return f'has no {name}'
        if saved[name] != variable.shape.as_list():
            return f'has {name} of shape {saved[name]} instead of {variable.shape.as_list()}'
    return None


def make_division(num_towers: int, batch_size: int) -> None:
    """Makes the int64 variables in which a checkpoint keeps how its run divides a step: `num_towers`, `batch_size`."""
    for name, value in zip(DIVISION, (num_towers, batch_size)):
        tf.get_variable(name, [], tf.int64, tf.constant_initializer(value), trainable=False)


def stored_division(prefix: str, batch_size: int | None) -> dict[str, int]:
    """Returns `num_towers` and `batch_size` of the run that wrote a checkpoint, as far as it tells them.

    Args:
      prefix: of the checkpoint.
      batch_size: of the run's settings, or None. A checkpoint of an earlier version has neither of the two, but
        counts its examples and its steps.
    """
    reader = tf.train.load_checkpoint(prefix)
    if reader.has_tensor(DIVISION[0]):
        return {name: int(reader.get_tensor(name)) for name in DIVISION}
    if batch_size is None or not reader.has_tensor(EXAMPLES_SEEN):
        return {}
    step = saved_step(prefix)
    if step:
        towers, rest = divmod(int(reader.get_tensor(EXAMPLES_SEEN)), step * batch_size)
        if towers and not rest:
            return dict(num_towers=towers, batch_size=batch_size)
    return dict(batch_size=batch_size)


def tidy(directory: TrainDir, max_to_keep: int) -> None:
    """Brings the directory of a run that has ended into order, in case it was killed on its last steps.

    Args:
      directory: a TrainDir.
      max_to_keep: how many checkpoints this start would keep. The run's own settings may say more.
    """
    stored = directory.stored()
    if stored is None:
        return
    directory.tidy(is_ours)
    before = stored.settings.reports.max_to_keep
    keep = max(before, max_to_keep) if before and max_to_keep else 0  # 0: all
    rotate(directory, [prefix for prefix in directory.checkpoints() if is_ours(prefix)], keep)


def rotate(directory: TrainDir, prefixes: list[str], max_to_keep: int) -> list[str]:
    """Lists the newest checkpoints, then removes the others; returns those that are kept.

    Args:
      directory: of the checkpoints.
      prefixes: of this program's checkpoints there, oldest first; others are neither listed nor removed.
      max_to_keep: how many are kept; 0: all.
    """
    kept = prefixes[-max_to_keep:]
    if kept:
        directory.list_checkpoints(kept)
    for prefix in prefixes[:len(prefixes) - len(kept)]:
        directory.remove_checkpoint(prefix)
    return kept


class Checkpoints:
    """Writes all global variables of a graph, and restores them; to be made when they are all there.

    What `make_division` makes is saved but not restored, because the run may have been told to divide otherwise.

    Args:
      directory: a TrainDir.
      start: prefix of the checkpoint to restore first, verified, or None.
      global_step, examples_seen: int64 variables.
      max_to_keep: how many of the newest checkpoints are kept; 0: all.

    Attributes:
      last: the prefix that was saved or restored last, or None.

    Raises:
      UsageError: `start` is a checkpoint of another graph.
    """

    def __init__(self, directory: TrainDir, start: str | None, global_step: tf.Variable,
                 examples_seen: tf.Variable, max_to_keep: int):
        self.last = None
        self._saved_step = None  # of the variables as they are, if no step was taken since
        self._kept = []  # the checkpoints that are listed and rotated, oldest first
        self._directory, self._start, self._max_to_keep = directory, start, max_to_keep
        self._counters = (global_step, examples_seen)
        variables = tf.global_variables()
        with tf.device('/cpu:0'), tf.name_scope('checkpoint'):
            self._saver = tf.train.Saver(variables)
            # Not in every checkpoint of the network: the tutorial's counts no examples, fp32's scales no loss.
            self._extras = [v for v in variables if v is examples_seen or v.op.name in LOSS_SCALE]
            variables = [v for v in variables if v.op.name not in DIVISION]
            self._restorer = tf.train.Saver(variables, name='restore')
            self._common = tf.train.Saver([v for v in variables if v is not global_step and v not in self._extras],
                                          name='restore_common')
            floats = [v.read_value() for v in variables if v.dtype.base_dtype.is_floating]
            self._finite = tf.reduce_all([tf.reduce_all(tf.is_finite(value)) for value in floats])
        found = start and incompatibility(
            start, {variable.op.name: variable for variable in variables if variable not in self._extras})
        if found:
            raise UsageError(f'{start} {found}: it belongs to another network; use another --train_dir')

    def restore(self, session: tf.Session) -> None:
        """Restores the newest readable checkpoint, if there is one, and keeps count of the older ones."""
        # The first session starts where the run was found; one that follows a lost device looks again, or the
        # run would go back to where it started.
        prefix = self._start or newest(self._directory)
        self._start = None
        self._saved_step = None
        if prefix is None:
            return
        reader = tf.train.load_checkpoint(prefix)
        if all(reader.has_tensor(variable.op.name) for variable in self._extras):
            self._restorer.restore(session, prefix)
        else:
            self._common.restore(session, prefix)
            for variable, value in zip(self._counters, saved_progress(prefix)):
                variable.load(np.int64(value), session)
        self.last = prefix
        self._saved_step = step_of(prefix)
        # Also those of earlier processes are rotated, but none of other programs.
        ours = [each for each in self._directory.checkpoints() if step_of(each) <= step_of(prefix) and is_ours(each)]
        self._kept = rotate(self._directory, ours, self._max_to_keep)

    def save(self, session: tf.Session) -> None:
        """Writes a checkpoint named by its step, and removes the oldest once it is on the disk.

        Does nothing if the step was saved or restored last: then the checkpoint is there already.

        TensorFlow's Saver writes the files only. Its own list and rotation come before anything is on the disk, so that
        a power failure could take the new checkpoint and the older ones.

        Raises:
          RunError: a variable is not finite, or the disk does not take it.
        """
        global_step, _ = self._counters
        step = int(session.run(global_step))
        if step == self._saved_step:
            return
        if not session.run(self._finite):
            raise RunError(f'step {step}: a variable is no longer finite, so no checkpoint is written; '
                           f'{describe_latest(self._directory)}')
        try:
            self._saver.save(session, self._directory.partial_prefix, step, write_meta_graph=False, write_state=False)
            self.last = prefix = self._directory.publish(step)
            self._saved_step = step
        except LOST:
            raise  # from which training starts over
        except (tf.errors.OpError, OSError) as error:
            self._directory.remove_partial(step)  # the disk may be full of it
            raise self._unwritten(step, error) from error
        try:
            kept = [each for each in self._kept if each != prefix]
            self._kept = rotate(self._directory, [*kept, prefix], self._max_to_keep)
        except OSError as error:
            raise self._unwritten(step, error) from error

    def _unwritten(self, step, error):
        return RunError(f'step {step}: the checkpoint cannot be written ({reason(error)}); '
                        f'{describe_latest(self._directory)}')
