"""Checkpoints: writing complete ones, finding the newest readable one, and restoring it.

Checkpoints of the classic tutorial fit too: they have the same variable names, a global_step in float32, and
no count of examples.
"""
import contextlib
import hashlib
import os
import re
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base import own
from cifar10.base.console import say
from cifar10.base.errors import RunError, UsageError, reason
from cifar10.model.precision import LOSS_SCALE
from cifar10.parallel.local import OUTER_STATE
from cifar10.run import metrics
from cifar10.run.rate import due
from cifar10.run.sessions import LOST
from cifar10.run.train_dir import SETTINGS, TrainDir, step_of

EXAMPLES_SEEN = 'examples_seen'  # the name of the variable that counts examples
DIVISION = ('num_towers', 'batch_size')  # the names of the variables that say how a step is divided
_CLASSIC_BATCH = 128  # examples of one step in the tutorial's checkpoints
_RETRY_SECS = 0.5

# Corrupt checkpoints that this process has reported. A watching evaluator looks for checkpoints again and
# again, from several places, and reports each corrupt one only once.
_reported = set()


def newest(directory: TrainDir) -> str | None:
    """Returns the prefix of the newest checkpoint that can be read completely, or None.

    A corrupt checkpoint (a full disk, a broken copy) is reported once, in a line. One that a trainer removes
    while it is being read, because there are newer ones, is not corrupt.
    """
    corrupt = set()
    while True:
        candidates = [prefix for prefix in directory.checkpoints() if prefix not in corrupt]
        if not candidates:
            return None
        prefix = candidates[-1]
        if corruption(prefix) is None:
            return prefix
        time.sleep(_RETRY_SECS)  # the trainer may be removing it, file by file
        if prefix not in directory.checkpoints():
            continue
        cause = corruption(prefix)
        if cause is None:
            return prefix
        corrupt.add(prefix)
        if prefix not in _reported:
            _reported.add(prefix)
            say(f'warning: {prefix} cannot be read ({cause}); looking for the one before it')


def newest_of_run(directory: TrainDir) -> str | None:
    """Returns the prefix of the checkpoint from which a run is resumed, or None if there are no checkpoints.

    Raises:
      UsageError: there are checkpoints, but none can be read, or it is unclear which program wrote them.
    """
    if directory.stored() is None:
        for prefix in directory.checkpoints():
            if not _can_be_opened(prefix):
                raise UsageError(f'{prefix} cannot be read, and there is no {SETTINGS} beside it; use another '
                                 '--train_dir')
    prefix = newest(directory)
    if prefix is None and directory.checkpoints():
        raise UsageError(f'no checkpoint in --train_dir={directory.path} can be read; use another --train_dir, or '
                         '--restart to delete that run')
    return prefix


def named(flag: str, given: str, others: str = '') -> str:
    """Returns the prefix of a checkpoint that the user names; raises a UsageError if it cannot be read completely.

    Args:
      flag: the flag that names it.
      given: its value: the prefix, or the name of the index.
      others: what else the flag takes, for the message, such as 'a directory, or '.
    """
    prefix = given.removesuffix('.index')
    if not os.path.exists(prefix + '.index'):
        folder = TrainDir(given if os.path.isdir(given) else os.path.dirname(prefix))
        example = (folder.checkpoints() or [f'{folder.checkpoint_prefix}-1000'])[-1]
        raise UsageError(f'--{flag}={given}: there is no such checkpoint; give {others}the prefix of one, such as '
                         f'{example}')
    if cause := corruption(prefix):
        raise UsageError(f'--{flag}={given} cannot be read ({cause}); give another checkpoint')
    return prefix


def corruption(prefix: str) -> str | None:
    """Returns why a checkpoint cannot be read, as a phrase, or None if it can."""
    try:
        reader = tf.train.load_checkpoint(prefix)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)  # checks lengths and checksums
    except Exception as error:  # of any type: the reader translates some of its errors and not others
        return reason(error)
    return None


def _can_be_opened(prefix):
    """Returns whether a checkpoint's index can be read; its variables may still be corrupt."""
    try:
        tf.train.load_checkpoint(prefix)
    except Exception:  # of any type, as above
        return False
    return True


def is_ours(prefix: str) -> bool:
    """Returns whether this program wrote a checkpoint; the classic scripts count no examples."""
    try:
        return tf.train.load_checkpoint(prefix).has_tensor(EXAMPLES_SEEN)
    except Exception:
        return True  # corrupted since it was written: no run begins beside a checkpoint that cannot be read


def saved_step(prefix: str) -> int:
    """Returns the global_step in a checkpoint; the tutorial's is a float32."""
    return int(tf.train.load_checkpoint(prefix).get_tensor('global_step'))


def saved_progress(prefix: str) -> tuple[int, int]:
    """Returns (the global_step in a checkpoint, how many examples the run had seen by then)."""
    reader = tf.train.load_checkpoint(prefix)
    step = saved_step(prefix)
    if not reader.has_tensor(EXAMPLES_SEEN):
        return step, step * _CLASSIC_BATCH
    return step, int(reader.get_tensor(EXAMPLES_SEEN))


def digest(prefix: str) -> str:
    """Returns the `digest_of` the variables in a checkpoint.

    Raises:
      OSError: the checkpoint cannot be read.
    """
    try:
        reader = tf.train.load_checkpoint(prefix)
        return digest_of(reader.get_variable_to_shape_map(), reader.get_tensor)
    except Exception as error:  # of any type, as in `corruption`
        raise OSError(reason(error)) from error


def digest_of(names: Collection[str], value: Callable[[str], np.ndarray]) -> str:
    """Returns the SHA-256 of a run's variables, as hexadecimal digits.

    How the step is divided is left out, because it is a setting of a start rather than a result of training.

    Args:
      names: the names of all variables that a checkpoint holds; their order does not matter.
      value: function name -> array. Its type and shape count as well as its bytes.
    """
    sha256 = hashlib.sha256()
    for name in sorted(set(names).difference(DIVISION)):
        array = np.asarray(value(name))
        sha256.update(f'{name} {array.dtype} {list(array.shape)}\n'.encode())
        sha256.update(array.tobytes())
    return sha256.hexdigest()


def describe_latest(directory: TrainDir) -> str:
    """Returns a phrase that says from which checkpoint a user can continue."""
    prefix = newest(directory)
    return f'the newest checkpoint is {prefix}' if prefix else 'there is no checkpoint yet'


def describe_replay(directory: TrainDir, step: int) -> str:
    """Returns a phrase with the command that shows why a step went wrong; it ends a line, so that it can be copied."""
    return f'to see why: python -m cifar10 replay --train_dir={shlex.quote(directory.path)} --step={step}'


@contextlib.contextmanager
def plain_errors(directory: TrainDir | None = None) -> Iterator[None]:
    """Context that turns errors of TensorFlow into RunErrors, which are one line.

    Args:
      directory: the train_dir whose newest checkpoint the line names, so that the user knows where the run goes on.
    """
    try:
        yield
    except tf.errors.OpError as error:
        latest = f'; {describe_latest(directory)}' if directory else ''
        # The message has where the operation was made, and where Python code of the user's raised an exception.
        frames = re.findall(r'File "([^"]*)", line (\d+)', str(error))
        raise RunError(f'{reason(error)}{own.place(frames)}{latest}') from error


def incompatibility(prefix: str, variables: Mapping[str, tf.Variable]) -> str | None:
    """Returns a phrase for the first variable that does not fit a checkpoint, or None if all fit.

    A restore into resource variables does not check shapes, and what happens afterwards is undefined.

    Args:
      prefix: the checkpoint's prefix.
      variables: name in the checkpoint -> variable.
    """
    saved = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    for name, variable in sorted(variables.items()):
        if name not in saved:
            return f'has no {name}'
        if saved[name] != variable.shape.as_list():
            return f'has {name} of shape {saved[name]} instead of {variable.shape.as_list()}'
    return None


def may_lack(name: str) -> bool:
    """Returns whether a checkpoint may lack a variable of the run that restores it.

    The tutorial's count no examples, those of fp32 scale no loss, and only those of `local` have a state of averages.
    """
    return name == EXAMPLES_SEEN or name in LOSS_SCALE or name.rpartition('/')[2] in OUTER_STATE


def make_division(num_towers: int, batch_size: int) -> None:
    """Creates the int64 variables `num_towers` and `batch_size`: how the run that is saved divides a step."""
    for name, value in zip(DIVISION, (num_towers, batch_size)):
        tf.get_variable(name, [], tf.int64, tf.constant_initializer(value), trainable=False)


def stored_division(prefix: str) -> dict[str, int]:
    """Returns the `num_towers` and `batch_size` with which a checkpoint was written; nothing of the tutorial's."""
    reader = tf.train.load_checkpoint(prefix)
    return {name: int(reader.get_tensor(name)) for name in DIVISION if reader.has_tensor(name)}


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
    directory.tidy(is_ours)
    before = stored.settings.reports.max_to_keep
    keep = max(before, max_to_keep) if before and max_to_keep else 0  # 0: all
    rotate(directory, [prefix for prefix in directory.checkpoints() if is_ours(prefix)], keep,
           directory.kept_for_good())


def rotate(directory: TrainDir, prefixes: list[str], max_to_keep: int, for_good: Collection[int] = ()) -> list[str]:
    """Lists the newest checkpoints and removes the others; returns the prefixes of those that are listed.

    As TensorFlow's Saver, it does not list those that are kept for good nor, where all are kept, any but the newest.
    So the time that a save takes does not depend on how many there are.

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
    """Writes and restores all global variables of a graph; create it once they all exist.

    The variables of `make_division` are saved but not restored, because this start may divide a step
    differently.

    Args:
      directory: the run's directory.
      start: prefix of the checkpoint to restore first, known to be readable; or None.
      global_step: int64 variable.
      examples_seen: int64 variable.
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

    def __init__(self, directory: TrainDir, start: str | None, global_step: tf.Variable,
                 examples_seen: tf.Variable, max_to_keep: int, log: metrics.Metrics, repeatable: bool = True,
                 keep_every: int = 0):
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
        self._counters = (global_step, examples_seen)
        variables = tf.global_variables()
        with tf.device('/cpu:0'), tf.name_scope('checkpoint'):
            self._saver = tf.train.Saver(variables)
            self._extras = [v for v in variables if may_lack(v.op.name)]
            variables = [v for v in variables if v.op.name not in DIVISION]
            self._common = tf.train.Saver([v for v in variables if v is not global_step and v not in self._extras],
                                          name='restore_common')
            floats = [v.read_value() for v in variables if v.dtype.base_dtype.is_floating]
            self._finite = tf.reduce_all([tf.reduce_all(tf.is_finite(value)) for value in floats])
        if start:
            required = {variable.op.name: variable for variable in variables if variable not in self._extras}
            misfit = incompatibility(start, required)
            if misfit:
                raise UsageError(f'{start} {misfit}: it belongs to another network or optimizer; use another '
                                 '--train_dir')

    def restore(self, session: tf.Session) -> None:
        """Restores the newest readable checkpoint, if there is one, and rotates the older ones."""
        self._directory.refuse_another_folder()
        # The first session restores the checkpoint that was chosen at the start. A session that follows the
        # loss of a device looks for the newest again; otherwise the run would go back to where this process
        # started.
        prefix = self._start or newest(self._directory)
        self._start = None
        self._saved_step = None
        if prefix is None:
            return
        reader = tf.train.load_checkpoint(prefix)
        self._common.restore(session, prefix)
        for variable in self._extras:
            if reader.has_tensor(variable.op.name):
                variable.load(reader.get_tensor(variable.op.name), session)
        for variable, value in zip(self._counters, saved_progress(prefix)):
            variable.load(np.int64(value), session)
        self.last = prefix
        self._saved_step = step_of(prefix)
        self._for_good = self._directory.kept_for_good()
        # Checkpoints of earlier processes are rotated too, but not those of other programs.
        ours = [older for older in self._directory.checkpoints()
                if step_of(older) <= step_of(prefix) and is_ours(older)]
        self._listed = rotate(self._directory, ours, self._max_to_keep, self._for_good)

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
        global_step, _ = self._counters
        step = int(session.run(global_step))
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
        metrics.send(record)

    def copy(self, session: tf.Session, folder: str) -> None:
        """Writes a checkpoint into another folder, which is neither recorded nor rotated nor yet on the disk.

        Raises:
          RunError: as `save`.
        """
        global_step, _ = self._counters
        step = int(session.run(global_step))
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
        if session.run(self._finite):
            return
        replay = f'; {describe_replay(self._directory, step)}' if self._repeatable else ''
        raise RunError(f'step {step}: a variable is not finite, so no checkpoint is written; '
                       f'{describe_latest(self._directory)}{replay}')

    def _unwritten(self, step, error):
        return RunError(f'step {step}: the checkpoint cannot be written ({reason(error)}); '
                        f'{describe_latest(self._directory)}')
